"""StepSizes: the decode-step kernel's compile-time numbers, and its layouts in registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from structgen.kernels.step_numbers import WARPS, StepNumbers


@dataclass(frozen=True)
class StepSizes(StepNumbers):
    """Hashable, so that it can be one constexpr argument of the kernel."""

    @property
    def parts_layout(self) -> Any:
        """[8 parts, 4 blocks, 64]: 8 elements of two parts a thread, the parts within a warp."""
        return _gluon().BlockedLayout([2, 1, 8], [4, 1, 8], [1, 4, 1], [2, 1, 0])

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
    def page_layout(self) -> Any:
        """[4 pages]."""
        return _gluon().BlockedLayout([1], [32], [WARPS], [0])

    @property
    def page_rows_layout(self) -> Any:
        """[4 pages, 16 tokens, head_dim / 2 pairs], as tile_layout."""
        across = self.schedule.shape.head_dim // 8
        return _gluon().BlockedLayout([1, 1, 4], [1, 32 // across, across], [1, WARPS, 1], [2, 1, 0])

    @property
    def kept_layout(self) -> Any:
        """In shared memory, the pages of the first tiles."""
        return _gluon().SwizzledSharedLayout(1, 1, 1, [0])

    @property
    def quads_layout(self) -> Any:
        """[4 heads, 16 quads of values]: a head a warp, in both halves of it."""
        lanes = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 0]]
        return _gluon().DistributedLinearLayout([], lanes, [[1, 0], [2, 0]], [], [4, 16])

    @property
    def heads_layout(self) -> Any:
        """[4 heads, 64], four values a thread, as quads_layout."""
        lanes = [[0, 4], [0, 8], [0, 16], [0, 32], [0, 0]]
        return _gluon().DistributedLinearLayout([[0, 1], [0, 2]], lanes, [[1, 0], [2, 0]], [], [4, 64])

    @property
    def polled_layout(self) -> Any:
        """[parts, batch_slots, merged_blocks, 16 quads of values]: the parts within a warp."""
        parts, rows = self.schedule.parts, self.schedule.batch_slots
        row_warps = WARPS // self.merged_blocks
        row_lanes = 2 if rows > row_warps else 1
        own = [parts * row_lanes // 2, rows // (row_warps * row_lanes), 1, 1]
        lanes = [2 // row_lanes, row_lanes, 1, 16]
        return _gluon().BlockedLayout(own, lanes, [1, row_warps, self.merged_blocks, 1], [3, 2, 1, 0])

    @property
    def row_place_layout(self) -> Any:
        """In shared memory, rows one after the other."""
        return _gluon().SwizzledSharedLayout(1, 1, 1, [1, 0])

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
