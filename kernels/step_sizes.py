"""StepSizes: every compile-time number and register layout of the decode-step kernel, derived from a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from structgen.kernels.instructions import packed_fields
from structgen.kernels.model_shape import BLOCK, PAGE_SIZE
from structgen.kernels.schedule import Schedule

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

    @cached_property
    def cache_key(self) -> str:
        """What Triton keeps compiled kernels under. It sees no source but the kernel's: so every number that is derived
        here is part of it, lest a change of this file be answered with yesterday's kernel."""
        names = [name for name, kind in vars(type(self)).items() if isinstance(kind, property)]
        values = {name: getattr(self, name) for name in names}
        return repr((self.schedule, self.schedule.packed(), self.trace, self.short, values, packed_fields()))

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

    @property
    def stage_blocks(self) -> int:
        """Blocks of activations that are converted at once in front of a whole product."""
        at_once = 16 if self.batch_tile == 4 else 4  # more would need more registers than there are
        return min(padded(self.schedule.shape.hidden_blocks), at_once)

    @property
    def stages(self) -> int:
        return -(-self.schedule.shape.hidden_blocks // self.stage_blocks)

    @property
    def qkv_blocks(self) -> int:
        return min(padded(max(part.k_end - part.k_begin for part in self.schedule.qkv)), self.stage_blocks)

    @property
    def qkv_stages(self) -> int:
        return -(-max(part.k_end - part.k_begin for part in self.schedule.qkv) // self.qkv_blocks)

    @property
    def output_blocks(self) -> int:
        return min(padded(max(part.k_end - part.k_begin for part in self.schedule.output)), 4)

    @property
    def output_stages(self) -> int:
        return -(-max(part.k_end - part.k_begin for part in self.schedule.output) // self.output_blocks)

    @property
    def down_blocks(self) -> int:
        return min(padded(self._down_columns), self.stage_blocks)

    @property
    def down_stages(self) -> int:
        return -(-self._down_columns // self.down_blocks)

    @property
    def _down_columns(self) -> int:
        return max(part.k_end - part.k_begin for group in self.schedule.down for part in group)

    @property
    def activation_blocks(self) -> int:
        """Blocks of activations that shared memory holds."""
        return max(
            self.stages * self.stage_blocks,
            self.down_stages * self.down_blocks,
            self.qkv_stages * self.qkv_blocks,
            self.output_stages * self.output_blocks,
            self._tile_bytes // (self.columns * 128),
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
        return 512 + max(self.output_blocks * self.schedule.batch_slots * 128, 512)

    @property
    def slots(self) -> int:
        """Slots of the ring: what is left of shared memory."""
        activations = self.activation_blocks * self.columns * BLOCK * 2
        activations += 2 * self.head_tile * 2 * (self.schedule.shape.head_dim + 64)
        return (SHARED_MEMORY - self._scratch_bytes - activations) // self.slot_bytes

    @property
    def flight(self) -> int:
        return min(max(self.flight_bytes // self.slot_bytes, 1), self.slots)

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
            and self.output_blocks == shape.group_blocks
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
