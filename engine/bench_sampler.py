"""python -m structgen.engine.bench_sampler [--vocab 49152] [--rows 1 8] [--device cpu]: what sampling a row costs.

Each kind of row is first compared with the same rows sampled one by one on the CPU, then timed, the transfer of the
result to the host included. The last line is one JSON object: kind -> microseconds a row, at each number of rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from structgen.engine.penalties import TokenHistory
from structgen.engine.sampler import RowSampling, Sampler
from structgen.engine.sampling_params import SamplingParams

HISTORY = 1000  # distinct tokens of prompt and output
KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "greedy": (False, {}),
    "greedy, mask": (True, {}),
    "temperature": (False, {"temperature": 0.7}),
    "temperature, mask": (True, {"temperature": 0.7}),
    "min_p, mask": (True, {"temperature": 0.7, "min_p": 0.05}),
    "top_k 50, mask": (True, {"temperature": 0.7, "top_k": 50}),
    "top_p 0.9, mask": (True, {"temperature": 0.7, "top_p": 0.9}),
    "penalties, mask": (True, {"repetition_penalty": 1.1, "frequency_penalty": 0.1}),
    "5 logprobs, mask": (True, {"logprobs": "masked", "top_logprobs": 5}),
    "5 raw logprobs, mask": (True, {"logprobs": "raw", "top_logprobs": 5}),
}


class Case:
    """Rows of one kind, and what it takes to sample them again and again: sampling overwrites its logits."""

    def __init__(self, kind: str, rows: int, vocab: int, device: str) -> None:
        has_mask, options = KINDS[kind]
        params = SamplingParams(**options)
        generator = torch.Generator().manual_seed(0)
        self.logits = (torch.randn(rows, vocab, generator=generator) * 4).to(device)
        words = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocab // 32)), generator=generator, dtype=torch.int32)
        self.mask, self.constrained = words.to(device), [has_mask] * rows
        self.rows = [RowSampling(params, (row + 0.5) / rows, _history(params, vocab)) for row in range(rows)]
        self.sampler = Sampler(vocab, device)
        self.scratch = torch.empty_like(self.logits)

    def run(self) -> list[Any]:
        return self.sampler.sample(self.scratch, self.mask, self.constrained, self.rows).read()

    def check(self) -> None:
        """The same tokens as on the CPU; exponentials may differ in their last bit between devices, so nearly all."""
        self.scratch.copy_(self.logits)
        here = [pick.token for pick in self.run()]
        slow = Sampler(self.logits.shape[1])
        alone = []
        for row in range(len(self.rows)):
            one = slice(row, row + 1)
            logits, mask = self.logits[one].cpu().clone(), self.mask[one].cpu()
            alone += [pick.token for pick in slow.sample(logits, mask, self.constrained[one], self.rows[one]).read()]
        same = sum(a == b for a, b in zip(here, alone, strict=True))
        assert same >= 0.9 * len(alone), f"only {same} of {len(alone)} tokens are the same"

    def microseconds(self, rounds: int) -> tuple[float, float]:
        """The best and the median of the rounds, for one row."""
        times = []
        for _ in range(rounds):
            self.scratch.copy_(self.logits)
            if self.scratch.is_cuda:
                torch.cuda.synchronize()
            started = time.perf_counter()
            self.run()
            times.append((time.perf_counter() - started) * 1e6 / len(self.rows))
        return min(times), statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m structgen.engine.bench_sampler", description=__doc__)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    best: dict[str, dict[str, float]] = {}
    print(f"{'us a row: best (median)':24}" + "".join(f"{rows:>8} rows    " for rows in options.rows))
    for kind in KINDS:
        line = []
        for rows in options.rows:
            case = Case(kind, rows, options.vocab, options.device)
            case.check()
            least, middle = case.microseconds(options.rounds)
            best.setdefault(kind, {})[str(rows)] = round(least, 1)
            line.append(f"{least:>8.1f} ({middle:.0f})".ljust(17))
        print(f"{kind:24}" + "".join(line))
    print(json.dumps({"vocab": options.vocab, "device": options.device, "us_per_row": best}))


def _history(params: SamplingParams, vocab: int) -> TokenHistory | None:
    if not params.edits_logits:
        return None
    history = TokenHistory(params, range(0, vocab, -(-vocab // HISTORY)))
    for token in range(0, vocab, -(-vocab // HISTORY)):
        history.append(token)
    return history


if __name__ == "__main__":
    main()
