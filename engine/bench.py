"""python -m structgen.engine.bench [--quick] [--dtype int8]: validate, then time decoding against transformers.

Both decode the same prompt greedily on the same weights, in turns, in one process; a call's time includes its prompt.
The median of the rounds is what counts; the best round says what the machine can do when nothing else runs on it.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from structgen.engine.bench_peer import Difference, TransformersPeer
from structgen.engine.engine import Engine
from structgen.engine.errors import EngineError
from structgen.engine.llama import Precision
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.weights import Dtype, load_model
from structgen.grammar.tokenizer_files import load_tokenizer

BATCH = 8
PROMPT_TOKENS = 64
PEER = "transformers"
ALLOWED_DIFFERENCE = 1e-3  # of a logit, in float32
TEXT = """The harbour office keeps a ledger of every ship that enters. On the left page stand the name of the ship, the
flag she sails under and the day she came in; on the right page the cargo, weighed in tonnes, and the fee that was paid.
In the spring of 1891 a clerk named Johanna Weber noticed that two ships had been entered under one name. She wrote to
the owners in Hamburg, who answered within a week: the older of the two had been sold, and her new captain had never
painted over the letters. The fee was split, the ledger corrected in red ink, and from then on each ship got a number.
A hundred years later the ledgers were typed into a database. Each record has five fields: number, name, flag, date and
cargo. Records whose date could not be read were marked, and 37 of them were later restored from old letters."""


def main() -> int:
    options = _options()
    torch.set_num_threads(options.threads)  # before the first engine, which takes it as the most
    try:
        return _bench(options)
    except EngineError as problem:
        print(f"{problem}\nhint: {problem.hint}", file=sys.stderr)
        return 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m structgen.engine.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds (under a minute)")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="auto", help="the form that the figures are for")
    parser.add_argument("--model", type=Path, default=default_model(), help=".gguf file or Hugging Face folder")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    options.rounds, options.tokens = (3, 48) if options.quick else (7, 128)
    return options


def default_model() -> Path:
    """Where `structgen models pull` puts the default model."""
    cache = os.environ.get("STRUCTGEN_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "structgen")
    folder = Path(cache).expanduser() / "models" / "smollm2-135m-instruct"
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _bench(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    chosen = load_model(options.model, dtype=options.dtype)
    load_s = time.perf_counter() - started
    models = {chosen.precision: chosen}
    for form in ("bfloat16", "float32"):
        models.setdefault(form, load_model(options.model, dtype=form))
    peer = TransformersPeer(options.model)

    ids = load_tokenizer(options.model).encode(TEXT.encode())
    expected = peer.logits(ids)
    differences = {form: peer.compare(model, ids, expected) for form, model in models.items()}
    _print_differences(differences, len(ids))
    if differences["float32"].largest_logit > ALLOWED_DIFFERENCE:
        print("the forward pass is wrong, so nothing is timed", file=sys.stderr)
        return 1

    if chosen.precision != "float32":
        del models["float32"]
    engines = {form: Engine(model, max_batch=BATCH, share_prefixes=False) for form, model in models.items()}
    timings = _time(engines, peer, ids[:PROMPT_TOKENS], options)
    _print_timings(timings, options)
    figures = _figures(chosen.precision, timings, options.tokens)
    figures |= {f"{form}_kl": round(difference.kl, 5) for form, difference in differences.items()}
    figures["float32_max_difference"] = differences["float32"].largest_logit
    figures |= {"load_s": round(load_s, 2), "threads": options.threads, "torch": torch.__version__}
    print(json.dumps(figures))
    return 0


def decode(engine: Engine, prompt: list[int], tokens: int, batch: int) -> float:
    """Seconds to make exactly `tokens` tokens greedily in each of `batch` sequences, prompt included."""
    started = time.perf_counter()
    for _ in range(batch):
        engine.submit(prompt, SamplingParams(max_tokens=tokens))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started


def _time(
    engines: dict[Precision, Engine], peer: TransformersPeer, prompt: list[int], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of each round of each contender; they take turns, so that a busy moment of the machine hits all alike."""
    contenders: dict[str, Callable[[int], float]] = {}
    for form, engine in engines.items():
        contenders[form] = partial(_decode_one, engine, prompt)
        contenders[f"{form} x{BATCH}"] = partial(_decode_many, engine, prompt)
    peer.to_bfloat16()
    contenders[PEER] = partial(peer.decode, prompt)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(options.rounds + 1):
        for name, contender in contenders.items():
            torch.set_num_threads(options.threads)  # an engine on a busy machine may have lowered it
            if turn == 0:
                contender(16)  # first calls allocate, and find how many threads are best
            else:
                seconds[name].append(contender(options.tokens))
    return seconds


def _decode_one(engine: Engine, prompt: list[int], tokens: int) -> float:
    return decode(engine, prompt, tokens, 1)


def _decode_many(engine: Engine, prompt: list[int], tokens: int) -> float:
    return decode(engine, prompt, tokens, BATCH)


def _figures(form: Precision, timings: dict[str, list[float]], tokens: int) -> dict[str, Any]:
    def per_token(name: str) -> float:
        return statistics.median(timings[name]) / tokens * 1000

    def best(name: str) -> float:
        return min(timings[name]) / tokens * 1000

    return {
        "dtype": form,
        "ms_per_token": round(per_token(form), 2),
        "transformers_ms_per_token": round(per_token(PEER), 2),
        "ratio": round(per_token(form) / per_token(PEER), 3),
        "best_ms_per_token": round(best(form), 2),
        "transformers_best_ms_per_token": round(best(PEER), 2),
        "best_ratio": round(best(form) / best(PEER), 3),
        "throughput_1": round(1000 / per_token(form), 1),
        f"throughput_{BATCH}": round(BATCH * 1000 / per_token(f"{form} x{BATCH}"), 1),
        "bfloat16_ms_per_token": round(per_token("bfloat16"), 2),
        "bfloat16_ratio": round(per_token("bfloat16") / per_token(PEER), 3),
        f"bfloat16_throughput_{BATCH}": round(BATCH * 1000 / per_token(f"bfloat16 x{BATCH}"), 1),
    }


def _print_differences(differences: dict[Precision, Difference], tokens: int) -> None:
    print(f"against transformers in float32, the same weights, a text of {tokens} tokens:")
    print(f"{'form':<12}{'largest logit difference':>26}{'KL (nats)':>12}{'same best token':>18}{'perplexity':>12}")
    for form, each in differences.items():
        print(f"{form:<12}{each.largest_logit:>26.2g}{each.kl:>12.5f}{each.same_top:>18.1%}{each.perplexity:>12.3f}")


def _print_timings(timings: dict[str, list[float]], options: argparse.Namespace) -> None:
    print(f"\n{options.tokens} tokens after a prompt of {PROMPT_TOKENS}, {options.threads} threads:")
    print(f"{'form':<22}{'ms per step: median':>20}{'best':>8}{'tokens/s':>12}{'against ' + PEER:>24}")
    for name, seconds in timings.items():
        rows = BATCH if name.endswith(f" x{BATCH}") else 1
        step, best = statistics.median(seconds) / options.tokens, min(seconds) / options.tokens
        against = f"{statistics.median(timings[PEER]) / options.tokens * rows / step:.2f}x the tokens/s"
        label = name + " bfloat16" * (name == PEER)
        print(f"{label:<22}{step * 1000:>20.2f}{best * 1000:>8.2f}{rows / step:>12.1f}{against:>24}")


if __name__ == "__main__":
    sys.exit(main())
