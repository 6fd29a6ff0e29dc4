"""python -m structgen.engine.bench_llama_cpp: time per structured token beside llama.cpp, on one GGUF file in one run.

By hand: llama-cpp-python is built from source (pip install llama-cpp-python, some six minutes). Both get the same
prompts as token ids and the same schemas, decode greedily, and stop after 32 tokens; the prompt is in the time.
llama.cpp turns a schema into its grammar ahead of the clock, and ours compiles there too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from structgen.engine.bench import default_model
from structgen.engine.bench_cpu import extraction_tasks
from structgen.engine.bench_rounds import Rounds
from structgen.engine.bench_schemas import EXTRACTIONS
from structgen.engine.bench_structured import MAX_TOKENS, Task
from structgen.engine.engine import Engine
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.weights import load_model
from structgen.grammar.tokenizer_files import load_tokenizer

TOKENS = 32
CONTEXT = 1024


@dataclass(frozen=True)
class LlamaCpp:
    """The peer: a loaded model and one grammar a task."""

    model: Any
    grammars: list[Any]

    def write(self, number: int, task: Task, *, free: bool) -> float:
        """Seconds a token."""
        self.model.reset()  # or the prompt would be remembered
        started, made = time.perf_counter(), 0
        grammar = None if free else self.grammars[number]
        for token in self.model.generate(task.prompt, temp=0.0, repeat_penalty=1.0, grammar=grammar):
            made += 1
            if made == TOKENS or token == self.model.token_eos():
                break
        return (time.perf_counter() - started) / made


def ours(engine: Engine, task: Task, *, free: bool) -> float:
    """Seconds a token, until there are at least TOKENS: a jump may make some more."""
    started = time.perf_counter()
    params = SamplingParams(max_tokens=TOKENS if free else MAX_TOKENS)
    sequence = engine.submit(task.prompt, params, None if free else task.matcher(), frozenset() if free else task.ends)
    while not sequence.finished and len(sequence.output_ids) < TOKENS:
        engine.step()
    seconds = time.perf_counter() - started
    engine.cancel(sequence)
    while engine.has_work:
        engine.step()
    return seconds / len(sequence.output_ids)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m structgen.engine.bench_llama_cpp", description=__doc__)
    parser.add_argument("--model", type=Path, default=default_model(), help=".gguf file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    try:
        import llama_cpp  # type: ignore[import-not-found]
    except ImportError:
        print("skipped: llama-cpp-python is not installed\nhint: pip install llama-cpp-python", file=sys.stderr)
        return 0
    torch.set_num_threads(options.threads)
    tasks = extraction_tasks(load_tokenizer(options.model))
    numbers = [number for number, task in enumerate(tasks) if task.matcher().min_tokens_to_complete > TOKENS]
    peer = LlamaCpp(
        llama_cpp.Llama(str(options.model), n_ctx=CONTEXT, n_threads=options.threads, verbose=False),
        [llama_cpp.LlamaGrammar.from_json_schema(json.dumps(each.schema), verbose=False) for each in EXTRACTIONS],
    )
    engine = Engine(load_model(options.model), max_batch=1, max_context=CONTEXT, share_prefixes=False)
    rounds = Rounds()
    for turn in range(options.rounds + 1):
        counted = rounds if turn else Rounds()  # the first turn finds masks and threads
        for number in numbers:
            counted.take_turns(
                {
                    "llama.cpp free": partial(peer.write, number, tasks[number], free=True),
                    "llama.cpp": partial(peer.write, number, tasks[number], free=False),
                    "ours free": partial(ours, engine, tasks[number], free=True),
                    "ours": partial(ours, engine, tasks[number], free=False),
                }
            )
    print(f"{TOKENS} tokens, prompt included, {len(numbers)} schemas, ms a token (median, best):")
    for name in rounds.costs:
        print(f"{name:<16}{rounds.median(name) * 1000:>8.2f}{rounds.best(name) * 1000:>8.2f}")
    figures = {
        "ms_per_structured_token": round(rounds.median("ours") * 1000, 2),
        "llama_cpp_ms_per_structured_token": round(rounds.median("llama.cpp") * 1000, 2),
        "ratio": round(rounds.ratio("ours", "llama.cpp"), 3),
        "free_ratio": round(rounds.ratio("ours free", "llama.cpp free"), 3),
        "llama_cpp": llama_cpp.__version__,
        "threads": options.threads,
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
