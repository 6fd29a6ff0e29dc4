"""StepNumbers: every compile-time number of the decode-step kernel, derived from a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from structgen.kernels.instructions import packed_fields
from structgen.kernels.model_shape import BLOCK, PAGE_SIZE
from structgen.kernels.schedule import Rectangle, Schedule

WARPS = 4  # of the consumers: one warpgroup
SHARED_MEMORY = 227 * 1024  # bytes a block may have on Hopper


def padded(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


@dataclass(frozen=True)
class StepNumbers:
    """Names without a unit count elements."""

    schedule: Schedule
    trace: bool = False
    short: int = 256  # tokens of context up to which each program attends to all of them; measured
    flight_bytes: int | None = None  # copies under way for one program; see `streamed_bytes`
    waiting_bytes: int = 32768  # the same while programs mostly wait for each other; measured
    ahead: int = 3  # slots asked into L2 when GateUp begins; measured

    @cached_property
    def cache_key(self) -> str:
        """What Triton keeps compiled kernels under. It sees no source but the kernel's: so every number that is derived
        here is part of it, lest a change of this file be answered with yesterday's kernel."""
        members = {name: kind for owner in type(self).__mro__ for name, kind in vars(owner).items()}
        names = sorted(name for name, kind in members.items() if isinstance(kind, property))
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
        return 136

    @property
    def staged_count(self) -> int:
        """mbarriers: the stages of GateUp's input, the factor of its norm, the stages of Down's neurons, and one that
        the consumers complete when GateUp's input is used up."""
        return self.stages + 1 + self.down_stages + 1

    @property
    def polled_sums(self) -> bool:
        """Whether the sums of Qkv are polled (device/nonzero.py): eight parts, a head a warp."""
        shape = self.schedule.shape
        eight = shape.hidden_blocks == 8 * self.fold
        return self.relayed and self.whole_heads and eight and (shape.group, shape.head_dim) == (4, 64)

    @property
    def qkv_parts(self) -> int:
        """Parts of each sum in `qkv`."""
        return 8 if self.polled_sums else 1

    @property
    def polled_parts(self) -> bool:
        """Whether the parts of the attention are polled: if a warp can have all parts of what it merges, and what it
        has merged is a tile of activations."""
        rows = self.schedule.batch_slots
        return rows * self.merged_blocks >= WARPS and (self.fold > 1 or rows == self.batch_tile)

    @property
    def merged_words(self) -> int:
        """Quads of values, each with a maximum and a sum, that a thread polls at once."""
        return self.schedule.parts * self.schedule.batch_slots * self.merged_blocks * 16 // (32 * WARPS)

    @property
    def merged_blocks(self) -> int:
        """Blocks of the attention's output that are merged at once."""
        return self.output_blocks * self.fold

    @property
    def part_values(self) -> int:
        """Float32 of one head of one part of the attention: its output, maximum, sum, and six unused."""
        return self.schedule.shape.head_dim + 8

    @property
    def layer_part_values(self) -> int:
        """Of all parts of a layer, rows that the batch lacks among them."""
        schedule = self.schedule
        items = schedule.shape.kv_heads * schedule.parts * schedule.batch_slots
        return items * schedule.shape.group * self.part_values

    @property
    def paired(self) -> bool:
        """Whether the attention takes two tiles of its context at once."""
        return self.fold > 1 and self.tiles == 2

    @property
    def planes(self) -> int:
        """Buffers of [batch_tile, hidden] in `residuals`: `middle` twice and the residual twice; relayed, two more of
        `middle`, because a layer's programs are then at most two barriers and not three apart."""
        return 6 if self.relayed else 4

    def middle_plane(self, layers: int) -> int:
        """Where in `residuals` the middle of the layer is that ran after `layers` others."""
        return (0, 1, 4, 5)[layers % 4] if self.relayed else layers % 2

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
        """For mbarriers, and for the compiler, whose largest exchange between threads is put_merged's.

        Where parts are polled it is not there: then 700 to 960 bytes are used, whatever the shape, so that of 16 KB
        nothing is left over at batch 8. test_decode_step.py compiles some, and a launch fails where it is too little.
        """
        if self.polled_parts:
            return 1024
        staging = 512 if self.staged else 0  # the stager's
        return 512 + staging + max(self.merged_blocks * self.schedule.batch_slots * 128, 512)

    @property
    def slots(self) -> int:
        """Slots of the ring: what is left of shared memory."""
        activations = self.activation_blocks * self.columns * BLOCK * 2
        activations += 2 * self.head_tile * 2 * (self.schedule.shape.head_dim + 64)
        return (SHARED_MEMORY - self._scratch_bytes - activations) // self.slot_bytes

    @property
    def streamed_bytes(self) -> int:
        """Copies under way where `waiting_bytes` does not say less; measured. With fewer fences and sums that have to
        queue behind them there may be more."""
        return self.flight_bytes or (81920 if self.relayed else 49152)

    @property
    def spares_sums(self) -> bool:
        """Whether slots that Qkv empties stay empty until its sums have come; measured. Polled sums take no harm."""
        return self.gated and not self.relayed

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

    @property
    def head_tile(self) -> int:
        """Query heads of a group, padded; each stands in two columns of a product."""
        return max(self.group_padded, 4)
