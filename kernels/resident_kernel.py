"""ResidentKernel: the decode step's kernel as a loop (device/resident_step.py), with what it owns on the device.

With one step a launch it is the decode step whose masks may come late: the launch can be captured in a CUDA graph, the
layers begin without the masks, and these are fetched from page-locked memory while the layers run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from structgen.kernels.decoder import SPARSE_LIMIT, Decoder, StepInput
from structgen.kernels.mailbox import Mailbox
from structgen.kernels.resident import Verdict

VERDICT = 3 * 16  # its place in Decoder.gates


class ResidentKernel:
    """A LoopDevice. The decoder may be used for other steps between loops, and not during one."""

    def __init__(self, decoder: Decoder, *, slots: int) -> None:
        from structgen.kernels.device.resident_step import resident_step

        self.decoder = decoder
        self.mailbox = Mailbox(batch=decoder.schedule.batch, words=decoder.sizes.mask_words, slots=slots, pinned=True)
        self._kernel: Any = resident_step
        self._input: StepInput | None = None
        self._spare_table, self._offset_stride = 0, 1
        self._left: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def load(self, step: StepInput, *, spare_table: int, offset_stride: int = 1) -> None:
        """The first step of the next loop; `step` is copied, but for its page tables.

        The tables must have the pages for all the loop's tokens, and table `spare_table` a page that nobody needs: rows
        that have ended write there. `offsets` grow by `offset_stride` a step; seeds and masks come by mailbox.
        """
        batch, device = self.decoder.schedule.batch, step.ids.device
        rows = torch.arange(batch, dtype=torch.int32, device=device)
        last = step.last_tokens[(-1 - step.ids).clamp_min(0).long()]
        self._input = replace(
            step,
            ids=-1 - rows,
            last_tokens=torch.where(step.ids < 0, last, step.ids.long()),
            lanes=rows,
            positions=step.positions.clone(),
            table_of=step.table_of.clone(),
            mask=torch.empty(batch, self.decoder.sizes.mask_words, dtype=torch.int32, device=device),
            constrained=torch.empty(batch, dtype=torch.int8, device=device),
            temperatures=step.temperatures.clone(),
            seeds=torch.empty(batch, dtype=torch.int64, device=device),
            offsets=step.offsets.clone(),
        )
        self._spare_table, self._offset_stride = spare_table, offset_stride

    # -- LoopDevice ---------------------------------------------------------------------------------------------------

    def number(self) -> int:
        return int(self.decoder.state[2].item()) % (1 << 32)

    def launch(self, steps: int, watchdog: float) -> None:
        if self._input is None:
            raise ValueError("no step is loaded")
        self.enqueue(self._input, steps, watchdog)
        self._left.record()

    def finished(self) -> bool:
        return bool(self._left.query())

    def verdict(self) -> Verdict:
        broken = bool(self.decoder.error.item())
        verdict = Verdict(int(self.decoder.gates[VERDICT].item()))
        if broken or verdict is Verdict.BROKEN:
            self.decoder.reset()
            return Verdict.BROKEN
        return verdict

    # -- the launch alone ---------------------------------------------------------------------------------------------

    def enqueue(self, step: StepInput, steps: int, watchdog: float, sparse_limit: int = SPARSE_LIMIT) -> None:
        """`steps` steps from `step` on, in whose tensors masks, seeds and tokens are written, and with more than one
        step positions, tables and offsets too. The mailbox must have begun with the number of the first step."""
        own, model, boxes = self.decoder, self.decoder.model, self.mailbox.buffers
        self._kernel[(own.schedule.programs,)](
            own.descriptor,
            model.packed,
            own.table,
            own.schedule.shape.layers,
            steps,
            own.state,
            own.residuals,
            own.qkv,
            own.neuron_words,
            own.partial,
            own.partial_max,
            own.partial_sum,
            own.counters,
            own.gates,
            own.error,
            own.trace,
            own.slot_trace,
            model.norms,
            model.weights.embedding,
            model.weights.head,
            model.cache[0],
            own.cache_offsets,
            own.cache_stride,
            model.cos,
            model.sin,
            step.ids,
            step.last_tokens,
            step.positions,
            step.table_of,
            step.tables,
            step.tables.shape[1],
            step.mask,
            step.constrained,
            sparse_limit,
            step.temperatures,
            step.seeds,
            step.offsets,
            own.logits,
            own.best_scores,
            own.best_tokens,
            own.tokens,
            step.lanes,
            own.decisions,
            boxes["word"],
            boxes["inbox_mask"],
            boxes["inbox_seeds"],
            boxes["outbox"],
            int(watchdog * 1e6),
            self._spare_table,
            self._offset_stride,
            own.sizes,
            num_warps=4,
            launch_cooperative_grid=True,
        )
