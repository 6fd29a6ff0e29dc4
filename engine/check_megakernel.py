"""python -m structgen.engine.check_megakernel MODEL [--steps 1000]: a real checkpoint's steps on the megakernel.

Text is sampled from the model, one sequence and then eight at a time, and each step is compared with float32 PyTorch on
the same weights and the same bfloat16 cache. 1 as exit status when fewer than 99 % of the best tokens are the same or
the logits differ by more than 1e-2. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from structgen.engine.errors import ModelError
from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import LlamaModel
from structgen.engine.megakernel_weights import device_model
from structgen.engine.runner import PAGE_SIZE
from structgen.engine.weights import load_model
from structgen.kernels.bench_check import LIMIT, relative, worst
from structgen.kernels.bench_micro import processors
from structgen.kernels.decoder import KEEP_LOGITS, RUN_HEAD, RUN_LAYERS, Decoder, StepInput
from structgen.kernels.model_shape import ModelShape, UnsupportedShape
from structgen.kernels.reference import ReferenceStep
from structgen.kernels.schedule import Schedule

SAME = 0.99
ROWS = (1, 8)
FIRST_TOKEN = 1


class Written:
    """Texts of one model, `rows` at a time, as the kernel and the reference see each of their tokens."""

    def __init__(self, model: LlamaModel, rows: int, length: int) -> None:
        self.shape = ModelShape.of(model.config)
        pages = -(-length // PAGE_SIZE)
        model.reserve(length)
        self._cache = KVCache(model.config, rows * pages, PAGE_SIZE, model.dtype, model.device)
        schedule = Schedule.build(self.shape, rows, processors())
        weights = device_model(model, self._cache, length, schedule)
        self._decoder = Decoder(schedule, weights)
        self._reference = ReferenceStep(self.shape, weights.weights, weights.cos, weights.sin)
        shuffled = torch.randperm(rows * pages, generator=torch.Generator().manual_seed(0))
        self._tables = shuffled.to(model.device, torch.int32).view(rows, pages)
        self._random = torch.Generator(model.device).manual_seed(0)
        self._ids = torch.full((rows,), FIRST_TOKEN, dtype=torch.int32, device=model.device)
        self.same, self.worst_logits, self.worst_hidden = 0, 0.0, 0.0

    def step(self, position: int) -> None:
        """One token for each text; what is sampled of the reference's logits is the next one."""
        decoder, rows = self._decoder, len(self._ids)
        positions = torch.full_like(self._ids, position)
        step = StepInput.free(self._ids, positions, self._tables, self.shape.vocab_size)
        cache = [layer.clone() for layer in self._cache.layers]
        hidden = self._reference.hidden(step.ids.long(), step.positions.long(), self._tables.long(), cache)[-1]
        expected = self._reference.logits(hidden)
        decoder.logits.fill_(float("nan"))
        decoder.launch(step, RUN_LAYERS)
        decoder.launch(step, RUN_HEAD | KEEP_LOGITS)
        decoder.check()
        found = decoder.residuals[2 + (int(decoder.state[0]) * self.shape.layers - 1) % 2, :rows]
        self.worst_hidden = worst(self.worst_hidden, relative(found, hidden))
        self.worst_logits = worst(self.worst_logits, relative(decoder.logits, expected))
        self.same += int((decoder.logits.argmax(1) == expected.argmax(1)).sum())
        self._ids = torch.multinomial(expected.softmax(1), 1, generator=self._random)[:, 0].int()


def check(model: LlamaModel, steps: int) -> dict[str, Any]:
    """`steps` tokens of one text, then as many of eight."""
    figures: dict[str, Any] = {"good": True}
    for rows in ROWS:
        length = -(-steps // rows)
        written = Written(model, rows, length)
        for position in range(length):
            written.step(position)
        share = written.same / (length * rows)
        good = share > SAME and written.worst_logits < LIMIT
        figures |= {f"same_{rows}": round(share, 5), f"worst_logits_{rows}": written.worst_logits}
        figures["good"] &= good
        print(
            f"{rows} at a time, positions 0 to {length - 1}: best token the same in {share:.2%}, largest errors: "
            f"logits {written.worst_logits:.1e}, hidden states {written.worst_hidden:.1e} {'ok' if good else 'WRONG'}"
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m structgen.engine.check_megakernel", description=__doc__)
    parser.add_argument("model", type=Path, help=".gguf file or Hugging Face folder")
    parser.add_argument("--steps", type=int, default=1000, help="tokens that are compared, for each number of rows")
    options = parser.parse_args()
    try:
        figures = check(load_model(options.model, dtype="bfloat16", device="cuda"), options.steps)
    except (ModelError, UnsupportedShape) as problem:
        print(problem, file=sys.stderr)
        return 2
    figures["model"] = options.model.name
    print(json.dumps(figures))
    return 0 if figures["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
