"""Run a kernel and the interpreter on the same random step and name the first instruction whose result differs.

    python -m structgen.kernels.diff --shape llama-1b --batch 1 --context 1000
    python -m structgen.kernels.diff --kernel portable --shape small      # anywhere, in Triton's interpreter

Exit status 1 when something differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from structgen.kernels.model_shape import LLAMA_1B, SMOLLM2_135M, ModelShape
from structgen.kernels.scene import Scene, Values, interpreted
from structgen.kernels.subjects import KERNELS, Subject

LIMIT: Final = 1e-2  # relative error
SHAPES: Final = {
    "llama-1b": LLAMA_1B,
    "smollm2": SMOLLM2_135M,
    "small": ModelShape(hidden=128, intermediate=192, layers=3, heads=6, kv_heads=2, head_dim=64, vocab_size=100),
}
# Whose result each value is, in the order in which a layer makes them.
MADE_BY: Final = {
    "appended": "Qkv",
    "attended": "Attention",
    "middle": "Output",
    "neurons": "GateUp",
    "residual": "Down",
}


@dataclass(frozen=True)
class Difference:
    layer: int
    instruction: str
    error: float

    def __str__(self) -> str:
        return f"{self.instruction} of layer {self.layer} differs first: relative error {self.error:.1e}"


def first_difference(subject: Subject, expected: Sequence[Values], logits: Tensor) -> Difference | None:
    """Bisect by layer, then look at the layer's values in order. `expected`: what each layer should leave behind."""

    def differs(layer: int) -> bool:
        return relative_error(subject.after(layer + 1)["residual"], expected[layer]["residual"]) > LIMIT

    layer = bisect_left(range(len(expected)), True, key=differs)
    if layer < len(expected):
        found = subject.after(layer + 1)
        errors = {name: relative_error(found[name], expected[layer][name]) for name in MADE_BY}
        name = next(name for name in MADE_BY if errors[name] > LIMIT)
        return Difference(layer, MADE_BY[name], errors[name])
    error = relative_error(subject.logits(), logits)
    return Difference(len(expected), "Head", error) if error > LIMIT else None


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Infinite when anything is not a number."""
    error = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    return error if error == error else float("inf")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        if options.kernel == "megakernel":
            print("the megakernel needs a Hopper GPU; --kernel portable runs anywhere", file=sys.stderr)
            return 2
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the Triton bodies are imported
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, layers=min(options.layers, shape.layers))
    scene = Scene.build(shape, options.batch, options.context, options.processors, device, options.seed)
    expected, logits = interpreted(scene)
    difference = first_difference(KERNELS[options.kernel](scene), expected, logits)
    told = f"{options.kernel}, {options.shape}, {shape.layers} layers, batch {options.batch}, context {options.context}"
    print(f"{told}: {difference or 'the same as the interpreter'}")
    return 1 if difference else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernel", choices=KERNELS, default="megakernel")
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=128, help="tokens of the first row; each next row has one less")
    parser.add_argument("--layers", type=int, default=0, help="only so many")
    parser.add_argument("--processors", type=int, default=132, help="programs at most")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
