"""StepSizes: every compile-time number and register layout of the decode-step kernel, derived from a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from structgen.kernels.instructions import packed_fields
from structgen.kernels.model_shape import BLOCK, PAGE_SIZE
from structgen.kernels.schedule import Rectangle, Schedule

WARPS = 4  # of the consumers: one warpgroup
SHARED_MEMORY = 227 * 1024  # bytes a block may have on Hopper


def padded(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


@dataclass(frozen=True)
class StepSizes:
    """Hashable, so that it can be one constexpr argument. Names without a unit count elements."""

    schedule: Schedule
    trace: bool = False
    short: int = 256  # tokens of context up to which each program attends to all of them; measured
    flight_bytes: int = 49152  # copies under way for one program; measured
    waiting_bytes: int = 32768  # the same while programs mostly wait for each other; measured
    ahead: int = 3  # slots asked into L2 when GateUp begins; measured

    @cached_property
    def cache_key(self) -> str:
        """What Triton keeps compiled kernels under. It sees no source but the kernel's: so every number that is derived
        here is part of it, lest a change of this file be answered with yesterday's kernel."""
        names = [name for name, kind in vars(type(self)).items() if isinstance(kind, property)]
        values = {name: getattr(self, name) for name in names}
        own = (self.trace, self.short, self.flight_bytes, self.waiting_bytes, self.ahead)
        return repr((self.schedule, self.schedule.packed(), own, values, packed_fields()))

    def field(self, name: str) -> int:
        """Place of a field in a program's row of the packed schedule."""
        return packed_fields().index(name)

    @property
    def field_count(self) -> int:
        return len(packed_fields())

    @property
    def batch(self) -> int:
        return self.schedule.batch

    @property
    def batch_tile(self) -> int:
        """Rows of activations in a product: 4 or 8, each as two columns, its bfloat16 value and the rest of it."""
        return 4 if self.batch <= 4 else 8

    @property
    def columns(self) -> int:
        return 2 * self.batch_tile

    @property
    def batch_padded(self) -> int:
        return padded(self.batch)

    @property
    def group_padded(self) -> int:
        return padded(self.schedule.shape.group)

    @property
    def hidden_padded(self) -> int:
        return padded(self.schedule.shape.hidden)

    @cached_property
    def fold(self) -> int:
        """Blocks of activations that lie side by side in one tile of columns: 4 for a batch of one, whose row would
        leave the columns of three others empty, if all products are of so many blocks; else 1."""
        schedule = self.schedule
        parts = [*schedule.qkv, *schedule.output, *(part for group in schedule.down for part in group)]
        widths = {schedule.shape.hidden_blocks, *(part.k_end - part.k_begin for part in parts)}
        fits = schedule.batch == 1 and schedule.slot_blocks == 2 and not any(width % 4 for width in widths)
        return 4 if fits else 1

    @property
    def gated(self) -> bool:
        """Whether the producer is told when the attention and GateUp begin: if in every program it still has slots of
        the layer to copy then (see products.produce)."""
        schedule = self.schedule
        for program, count in enumerate(schedule.layer_slots):
            qkv, _, output, _, _ = schedule.layer_instructions(program, 0)
            blocks = sum((part.row_end - part.row_begin) * (part.k_end - part.k_begin) for part in (qkv, output))
            if count <= self.slots + blocks // schedule.slot_blocks:
                return False
        return True

    @property
    def qkv_rows(self) -> int:
        """Rows of every program's Qkv, if they are alike and one tile wide."""
        return self._narrow_rows(self.schedule.qkv)

    @property
    def output_rows(self) -> int:
        return self._narrow_rows(self.schedule.output)

    def _narrow_rows(self, parts: tuple[Rectangle, ...]) -> int:
        alike = len({(part.row_end - part.row_begin, part.k_end - part.k_begin) for part in parts}) == 1
        narrow = alike and self.schedule.slot_blocks == 2 and parts[0].k_end - parts[0].k_begin == 4
        return parts[0].row_end - parts[0].row_begin if narrow else 0

    @cached_property
    def relayed(self) -> bool:
        """Whether values that pass from program to program carry flags (device/flagged.py).

        These are the neurons, and the sums of Down, of which Qkv polls eight parts, one of each group. More rows would
        be too much to poll. See relayed_order.py for the proof.
        """
        shape, schedule = self.schedule.shape, self.schedule
        columns = shape.neuron_blocks // shape.kv_heads
        whole = all((part.k_begin, part.k_end) == (0, columns) for group in schedule.down for part in group)
        return self.fold > 1 and self.qkv_rows > 0 and shape.kv_heads == 8 and whole

    @property
    def staged(self) -> bool:
        """Whether four warps beside the consumers put GateUp's and Down's activations into shared memory (see
        device/stager.py): those of one folded row are too few for that."""
        return self.fold == 1

    @property
    def stager_registers(self) -> int:
        """A thread: with fewer some are spilled, with more ptxas finds more to spill elsewhere."""
        return 144

    @property
    def staged_count(self) -> int:
        """mbarriers: the stages of GateUp's input, the factor of its norm, the stages of Down's neurons."""
        return self.stages + 1 + self.down_stages

    @property
    def planes(self) -> int:
        """Buffers of [batch_tile, hidden] in `residuals`: `middle` twice and the residual twice; relayed, two more of
        `middle`, because a layer's programs are then at most two barriers and not three apart."""
        return 6 if self.relayed else 4

    def middle_plane(self, layers: int) -> int:
        """Where in `residuals` the middle of the layer is that ran after `layers` others."""
        return (0, 1, 4, 5)[layers % 4] if self.relayed else layers % 2

    @property
    def parts_layout(self) -> Any:
        """[8 parts, 4 blocks, 64]: 8 elements of two parts a thread, the parts within a warp."""
        return _gluon().BlockedLayout([2, 1, 8], [4, 1, 8], [1, 4, 1], [2, 1, 0])

    @property
    def stage_blocks(self) -> int:
        """Tiles of activations that are converted at once in front of a whole product."""
        at_once = 32 // self.batch_tile if self.staged else 16  # more would need more registers than there are
        return min(padded(self.schedule.shape.hidden_blocks // self.fold), at_once)

    @property
    def stages(self) -> int:
        return -(-self.schedule.shape.hidden_blocks // self.fold // self.stage_blocks)

    @property
    def qkv_blocks(self) -> int:
        return min(padded(self._widest(self.schedule.qkv)), self.stage_blocks)

    @property
    def qkv_stages(self) -> int:
        return -(-self._widest(self.schedule.qkv) // self.qkv_blocks)

    @property
    def output_blocks(self) -> int:
        return min(padded(self._widest(self.schedule.output)), 4 // self.fold)

    @property
    def output_stages(self) -> int:
        return -(-self._widest(self.schedule.output) // self.output_blocks)

    @property
    def down_blocks(self) -> int:
        return min(padded(self._down_columns), self.stage_blocks)

    @property
    def down_stages(self) -> int:
        return -(-self._down_columns // self.down_blocks)

    @property
    def _down_columns(self) -> int:
        return max(self._widest(group) for group in self.schedule.down)

    def _widest(self, parts: tuple[Rectangle, ...]) -> int:
        """Tiles of columns of the widest part."""
        return max(part.k_end - part.k_begin for part in parts) // self.fold

    @property
    def activation_blocks(self) -> int:
        """Tiles of activations that shared memory holds."""
        return max(
            self.stages * self.stage_blocks,
            self.down_stages * self.down_blocks,
            self.qkv_stages * self.qkv_blocks,
            self.output_stages * self.output_blocks,
            (1 if self.fold == 1 else 2) * self._tile_bytes // (self.columns * 128),
        )

    @property
    def _tile_bytes(self) -> int:
        """Keys and values of 64 tokens of one head."""
        return 2 * 64 * self.schedule.shape.head_dim * 2

    @property
    def tiles(self) -> int:
        """Tiles of keys and values that fit where the activations lie, which are not needed during the attention."""
        return min(self.activation_blocks * self.columns * 128 // self._tile_bytes, 2)

    @property
    def slot_bytes(self) -> int:
        return self.schedule.slot_blocks * BLOCK * BLOCK * 2

    @property
    def _scratch_bytes(self) -> int:
        """For mbarriers, and for the compiler, whose largest exchange between threads is put_merged's."""
        staging = 512 if self.staged else 0  # the stager's
        return 512 + staging + max(self.fold * self.output_blocks * self.schedule.batch_slots * 128, 512)

    @property
    def slots(self) -> int:
        """Slots of the ring: what is left of shared memory."""
        activations = self.activation_blocks * self.columns * BLOCK * 2
        activations += 2 * self.head_tile * 2 * (self.schedule.shape.head_dim + 64)
        return (SHARED_MEMORY - self._scratch_bytes - activations) // self.slot_bytes

    def flight(self, size: int) -> int:
        """Slots in so many bytes of copies under way."""
        return min(max(size // self.slot_bytes, 1), self.slots)

    @property
    def mask_words(self) -> int:
        return -(-self.schedule.shape.vocab_size // 32)

    @property
    def fetch_share(self) -> int:
        """Words of all rows' masks together that a program of the resident loop fetches: whole lines of 128 bytes."""
        return -(-self.batch * self.mask_words // (32 * self.schedule.programs)) * 32

    @property
    def fetch_padded(self) -> int:
        return padded(self.fetch_share)

    @property
    def page_size(self) -> int:
        return PAGE_SIZE

    @property
    def words_padded(self) -> int:
        return max(padded(self.mask_words), 32 * WARPS)

    @property
    def programs_padded(self) -> int:
        return max(padded(self.schedule.programs), 32 * WARPS)

    @property
    def qkv_stride(self) -> int:
        """From one (row, group) of `qkv` to the next: its values, then the sum of squares of the row's input."""
        return self.schedule.shape.group_rows + 32

    @property
    def whole_heads(self) -> bool:
        """Whether a program can compute a short context's attention for itself: one row, whole heads to multiply."""
        shape, parts = self.schedule.shape, self.schedule.output
        return (
            self.batch == 1
            and self.head_tile == shape.group
            and self.output_blocks * self.fold == shape.group_blocks
            and all(part.k_end - part.k_begin == shape.group_blocks for part in parts)
        )

    # register layouts

    @property
    def accumulator(self) -> Any:
        gl = _gluon()
        return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, self.columns, 16])

    @property
    def weight_layout(self) -> Any:
        return _gluon().NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)

    @property
    def activation_layout(self) -> Any:
        """[blocks, batch_tile, 64]: 8 elements a thread, 8 threads a row."""
        warps = [4, 1, 1] if self.batch_tile == 4 else [2, 2, 1]
        return _gluon().BlockedLayout([1, 1, 8], [1, 4, 8], warps, [2, 1, 0])

    @property
    def norm_pair_layout(self) -> Any:
        """[blocks, batch_tile, 32 pairs]: the elements of activation_layout, two in one."""
        warps = [4, 1, 1] if self.batch_tile == 4 else [2, 2, 1]
        return _gluon().BlockedLayout([1, 1, 4], [1, 4, 8], warps, [2, 1, 0])

    @property
    def merge_layout(self) -> Any:
        """[parts, batch_slots, blocks, 64]."""
        return _gluon().BlockedLayout([1, 1, 1, 4], [1, 1, 2, 16], [1, 1, 4, 1], [3, 2, 1, 0])

    @property
    def head_tile(self) -> int:
        """Query heads of a group, padded; each stands in two columns of a product."""
        return max(self.group_padded, 4)

    @property
    def head_accumulator(self) -> Any:
        gl = _gluon()
        return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 2 * self.head_tile, 16])

    def head_sums(self, rows: int) -> Any:
        """[rows, head_tile], the two columns of a head added."""
        return _sums_layout(rows, self.head_tile)

    @property
    def tile_layout(self) -> Any:
        """[64 tokens, head_dim / 2 pairs]: 16 bytes a thread."""
        across = self.schedule.shape.head_dim // 8
        return _gluon().BlockedLayout([1, 4], [32 // across, across], [WARPS, 1], [1, 0])

    @property
    def pair_layout(self) -> Any:
        """In shared memory, a tile of keys or values as pairs in int32."""
        return _gluon().NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)

    @property
    def append_layout(self) -> Any:
        """[batch, head_dim]."""
        across = self.schedule.shape.head_dim // 8
        return _gluon().BlockedLayout([1, 8], [32 // across, across], [4, 1], [1, 0])

    @property
    def row_layout(self) -> Any:
        """[columns] over all threads."""
        return _gluon().BlockedLayout([4], [32], [WARPS], [0])

    @property
    def sums_layout(self) -> Any:
        """[64, batch_tile]: what is left of the accumulator when the two columns of a row are added."""
        return _sums_layout(64, self.batch_tile)

    @property
    def lane_layout(self) -> Any:
        """[32], in the producer's one warp."""
        return _gluon().BlockedLayout([1], [32], [1], [0])

    @property
    def factor_layout(self) -> Any:
        """[batch_tile], in shared memory."""
        return _gluon().SwizzledSharedLayout(1, 1, 1, [0])

    @property
    def clear_layout(self) -> Any:
        """[128]."""
        return _gluon().BlockedLayout([1], [32], [WARPS], [0])

    @property
    def choose_layout(self) -> Any:
        """[programs, batch_tile]."""
        return _gluon().BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])

    @property
    def word_layout(self) -> Any:
        """[words of a mask]: consecutive words in a thread, so that counting along them is cheap."""
        return _gluon().BlockedLayout([self.words_padded // (32 * WARPS)], [32], [WARPS], [0])


def _sums_layout(rows: int, columns: int) -> Any:
    registers = [[8, 0]] + [[0, 4 << bit] for bit in range((columns // 4).bit_length() - 1)]
    registers += [[64 << bit, 0] for bit in range((rows // 64).bit_length() - 1)]
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return _gluon().DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [rows, columns])


def _gluon() -> Any:
    from triton.experimental.gluon import language

    return language
