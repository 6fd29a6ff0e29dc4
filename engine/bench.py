"""python -m structgen.engine.bench [--quick] [--device cpu|cuda] [--runner torch|megakernel]: validate, then time.

On the CPU: SmolLM2 against transformers in the same run, then what structure costs and saves (bench_cpu.py). On a GPU:
the shapes of Llama-3.2-1B with random weights (bench_gpu.py). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, get_args

import torch

from structgen.engine.errors import EngineError
from structgen.engine.weights import Dtype
from structgen.grammar.numba_cache import cache_folder
from structgen.grammar.warm_up import warm_up


def main() -> int:
    started = time.perf_counter()
    options = _options()
    torch.set_num_threads(options.threads)  # before the first engine, which takes it as the most
    warm_up()  # the grammar's functions; compiled only where they are first wanted, they would be timed
    try:
        figures = _bench(options)
    except EngineError as problem:
        print(f"{problem}\nhint: {problem.hint}", file=sys.stderr)
        return 2
    figures |= {"seconds": round(time.perf_counter() - started, 1), "torch": torch.__version__}
    print(json.dumps(figures))
    return 1 if "error" in figures else 0


def _bench(options: argparse.Namespace) -> dict[str, Any]:
    if options.device == "cuda":
        from structgen.engine.bench_gpu import bench_gpu

        return bench_gpu(options)
    from structgen.engine.bench_cpu import bench_cpu

    return bench_cpu(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m structgen.engine.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds (under 50 seconds)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runner", choices=["torch", "megakernel"], default="torch", help="on a GPU")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="auto", help="the form that CPU figures are for")
    parser.add_argument("--model", type=Path, default=default_model(), help=".gguf file or Hugging Face folder (CPU)")
    parser.add_argument("--tokenizer", type=Path, help="of 128,256 tokens or fewer (GPU); made up when left out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def default_model() -> Path:
    """Where `structgen models pull` puts the default model."""
    return cache_folder() / "models" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"


if __name__ == "__main__":
    sys.exit(main())
