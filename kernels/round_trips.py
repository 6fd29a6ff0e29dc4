"""Ways to decode tokens whose masks the host makes from the token before: one by one, or in the resident loop.

All give the same tokens: a row's noise is (seed, offset), and the offset grows by one a token. Sums in memory are in
no fixed order, so two runs differ in the last bits; where two tokens are as good as each other within these, they may
part. `differences` therefore judges each token by the tokens before it, and knows ties.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structgen.kernels.decoder import KEEP_LOGITS, RUN_HEAD, RUN_LAYERS, USE_MASK, Decoder, StepInput
from structgen.kernels.host_masks import HostMasks
from structgen.kernels.mailbox import FREE, MASKED, Rows
from structgen.kernels.masked_sampling_reference import gumbel_noise
from structgen.kernels.resident import ResidentLoop
from structgen.kernels.resident_kernel import ResidentKernel

TIE = 1e-3  # of scores
PATIENCE = 5.0  # seconds for any token
HEADER = 256  # octets in front of the masks


class Staged:
    """A step's positions, noise and masks: a pinned buffer and its twin on the device, the masks last."""

    def __init__(self, step: StepInput) -> None:
        batch, words = step.mask.shape
        self.host = torch.zeros(HEADER + batch * words * 4, dtype=torch.uint8, pin_memory=True)
        self.device = torch.zeros_like(self.host, device=step.ids.device)
        self.offsets, self.positions, self.mask = _views(self.host, batch)
        offsets, positions, mask = _views(self.device, batch)
        self.step = replace(
            step,
            offsets=offsets,
            positions=positions,
            constrained=torch.ones(batch, dtype=torch.int8, device=step.ids.device),
            mask=mask,
            last_tokens=step.last_tokens.clone(),
        )
        self._first = step

    def begin(self) -> None:
        """As the first step has it."""
        self.step.last_tokens.copy_(self._first.last_tokens)
        self.positions.copy_(self._first.positions)
        self.offsets.copy_(self._first.offsets)
        torch.cuda.synchronize()

    def advance(self) -> None:
        self.positions.numpy()[:] += 1
        self.offsets.numpy()[:] += 1

    def send(self, begin: int, end: int | None) -> None:
        self.device[begin:end].copy_(self.host[begin:end], non_blocking=True)


def _views(buffer: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        buffer[:64].view(torch.int64)[:batch],
        buffer[64:96].view(torch.int32)[:batch],
        buffer[HEADER:].view(torch.int32).view(batch, -1),
    )


class OneByOne:
    """A launch for each token, or two: its layers before the masks are made, its head after."""

    def __init__(self, decoder: Decoder, step: StepInput, *, split: bool, graphs: bool) -> None:
        self._decoder, self._staged, self._split = decoder, Staged(step), split
        self._arrived = torch.zeros(len(decoder.outcome), dtype=torch.int64, pin_memory=True)
        self._done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._staged.begin()
        self._before = captured(self._layers) if graphs and split else self._layers
        self._after = captured(self._rest) if graphs else self._rest

    def _layers(self) -> None:
        self._staged.send(0, HEADER)
        self._decoder.launch(self._staged.step, RUN_LAYERS)

    def _rest(self) -> None:
        self._staged.send(HEADER if self._split else 0, None)
        self._decoder.launch(self._staged.step, RUN_HEAD | USE_MASK | (0 if self._split else RUN_LAYERS))
        self._arrived.copy_(self._decoder.outcome, non_blocking=True)

    def run(self, steps: int, masks: HostMasks) -> list[list[int]]:
        """[steps][batch]."""
        staged, found, tokens = self._staged, [], None
        staged.begin()
        for step in range(steps):
            if self._split:
                self._before()
            masks.fill(step, tokens, staged.mask.numpy())
            self._after()
            self._done.record()
            spin(self._done.query)
            tokens = self._arrived[:-1].tolist()
            found.append(tokens)
            staged.advance()
        self._decoder.check()
        return found


class LateMasks:
    """One launch for each token, which fetches the masks when they are there: a resident loop of one step."""

    def __init__(self, kernel: ResidentKernel, step: StepInput, *, graphs: bool) -> None:
        self._kernel, self._staged = kernel, Staged(step)
        self._staged.begin()
        self._grant_one()
        self._launch = captured(self._one) if graphs else self._one

    def _grant_one(self) -> None:
        """So that the launch before capturing does not wait for the host."""
        box = self._kernel.mailbox
        box.begin(self._kernel.number())
        box.rows[:] = FREE
        box.grant()

    def _one(self) -> None:
        self._staged.send(0, HEADER)
        self._kernel.enqueue(self._staged.step, 1, PATIENCE)

    def run(self, steps: int, masks: HostMasks) -> list[list[int]]:
        box, staged, found = self._kernel.mailbox, self._staged, []
        tokens: Rows | None = None
        staged.begin()
        number = self._kernel.number()
        box.seeds[:] = staged.step.seeds.cpu().numpy()
        for step in range(steps):
            box.begin(number + step)
            self._launch()
            masks.fill(step, tokens, box.mask)
            box.rows[:] = MASKED
            box.grant()
            tokens = spin(box.poll)
            found.append(tokens.tolist())
            staged.advance()
        return found


class Resident:
    """All tokens in one launch."""

    def __init__(self, kernel: ResidentKernel, step: StepInput) -> None:
        self._kernel, self._step = kernel, step

    def run(self, steps: int, masks: HostMasks) -> list[list[int]]:
        found = []
        tokens: Rows | None = None
        self._kernel.load(self._step, spare_table=len(self._step.tables) - 1)
        self._kernel.mailbox.seeds[:] = self._step.seeds.cpu().numpy()
        with ResidentLoop(self._kernel, steps=steps, watchdog=PATIENCE) as loop:
            for step in range(steps):
                masks.fill(step, tokens, loop.mask)
                loop.rows[:] = MASKED
                loop.grant()
                tokens = loop.next_tokens(PATIENCE)
                found.append(tokens.tolist())
        return found


def differences(decoder: Decoder, step: StepInput, masks: HostMasks, found: list[list[int]]) -> tuple[int, int]:
    """Of tokens [steps][batch]: how many are not what one launch a token gives after the same tokens; how many of these
    are no ties, and printed: their scores are more than `TIE` below the best."""
    staged = Staged(step)
    staged.begin()
    before, other, wrong = None, 0, 0
    for number, tokens in enumerate(found):
        masks.fill(number, before, staged.mask.numpy())
        staged.send(0, None)
        decoder.launch(staged.step, RUN_LAYERS | RUN_HEAD | USE_MASK | KEEP_LOGITS)
        best = decoder.tokens.tolist()
        for row, (token, expected) in enumerate(zip(tokens, best, strict=True)):
            if token != expected:
                other += 1
                best_score, score = (_score(decoder, staged, row, one) for one in (expected, token))
                if not best_score - score <= TIE:
                    wrong += 1
                    print(f"step {number}, row {row}: {token} has {score:.4f}, {expected} has {best_score:.4f}")
        before = tokens
        staged.step.last_tokens[: len(tokens)] = torch.tensor(tokens, device=staged.device.device)
        staged.advance()
    decoder.check()
    return other, wrong


def _score(decoder: Decoder, staged: Staged, row: int, token: int) -> float:
    """What the largest of wins; -inf of a forbidden token, and of none."""
    step, logit = staged.step, float(decoder.logits[row, token])
    if token < 0 or not int(staged.mask[row, token // 32]) >> token % 32 & 1:
        return -float("inf")
    temperature = float(step.temperatures[row])
    noise = gumbel_noise(token + 1, int(step.seeds[row]), int(staged.offsets[row]))[token]
    return logit / temperature + float(noise) if temperature else logit


def spin(ready: Callable[[], Any]) -> Any:
    deadline = time.perf_counter() + PATIENCE
    while True:
        found = ready()
        if found is not None and found is not False:
            return found
        if time.perf_counter() > deadline:
            raise TimeoutError(f"the device took more than {PATIENCE} seconds")


def captured(work: Callable[[], None]) -> Callable[[], None]:
    """`work` as one graph. It is also run once, and compiled if need be."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def milliseconds(run: Callable[[int, HostMasks], list[list[int]]], steps: int, masks: HostMasks) -> float:
    """A token, by the wall clock: the median of three runs."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        run(steps, masks)
        times.append((time.perf_counter() - begin) * 1000 / steps)
    return float(np.median(times))
