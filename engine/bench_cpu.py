"""The CPU figures: a model beside transformers on the same weights, and structured output beside free text.

A call's time against transformers includes its prompt. A forward pass that differs from transformers' is not timed.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import Any

import torch

from structgen.engine.bench_peer import Difference, TransformersPeer
from structgen.engine.bench_rounds import Rounds
from structgen.engine.bench_schemas import EXTRACTIONS
from structgen.engine.bench_structured import Contest, Task, Writer
from structgen.engine.engine import Engine
from structgen.engine.llama import LlamaModel, Precision
from structgen.engine.sampling_params import SamplingParams
from structgen.engine.torch_runner import TorchRunner
from structgen.engine.weights import load_model
from structgen.grammar import Grammar, Vocabulary
from structgen.grammar.tokenizer_files import TokenizerFile, load_tokenizer

BATCH = 8
PROMPT_TOKENS = 64
PEER = "transformers"
QUICK = (0, 2, 3, 4, 7)  # of the extractions
ALLOWED_DIFFERENCE = 1e-3  # of a logit, in float32
TEXT = """The harbour office keeps a ledger of every ship that enters. On the left page stand the name of the ship, the
flag she sails under and the day she came in; on the right page the cargo, weighed in tonnes, and the fee that was paid.
In the spring of 1891 a clerk named Johanna Weber noticed that two ships had been entered under one name. She wrote to
the owners in Hamburg, who answered within a week: the older of the two had been sold, and her new captain had never
painted over the letters. The fee was split, the ledger corrected in red ink, and from then on each ship got a number.
A hundred years later the ledgers were typed into a database. Each record has five fields: number, name, flag, date and
cargo. Records whose date could not be read were marked, and 37 of them were later restored from old letters."""


def bench_cpu(options: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    chosen = load_model(options.model, dtype=options.dtype)
    load_s = time.perf_counter() - started
    models = {chosen.precision: chosen}
    for form in ("bfloat16", "float32"):
        models.setdefault(form, load_model(options.model, dtype=form))
    tokenizer = load_tokenizer(options.model)
    peer = TransformersPeer(options.model, quick=options.quick)
    ids = tokenizer.encode(TEXT.encode())
    differences = _validate(models, peer, ids)
    figures: dict[str, Any] = {f"{form}_kl": round(difference.kl, 5) for form, difference in differences.items()}
    figures["float32_max_difference"] = differences["float32"].largest_logit
    if differences["float32"].largest_logit > ALLOWED_DIFFERENCE:
        print("the forward pass is wrong, so nothing is timed", file=sys.stderr)
        return figures | {"error": "the forward pass is wrong"}
    if chosen.precision != "float32":
        del models["float32"]
    figures |= _against_peer(models, chosen.precision, peer, ids[:PROMPT_TOKENS], options)
    del models, peer
    figures |= _structured(chosen, tokenizer, options)
    return figures | {"dtype": chosen.precision, "load_s": round(load_s, 2), "threads": options.threads}


# -- the forward pass -------------------------------------------------------------------------------------------------


def _validate(
    models: dict[Precision, LlamaModel], peer: TransformersPeer, ids: list[int]
) -> dict[Precision, Difference]:
    expected = peer.logits(ids)
    differences = {form: peer.compare(model, ids, expected) for form, model in models.items()}
    print(f"against transformers in float32, the same weights, a text of {len(ids)} tokens:")
    print(f"{'form':<12}{'largest logit difference':>26}{'KL (nats)':>12}{'same best token':>18}{'perplexity':>12}")
    for form, each in differences.items():
        print(f"{form:<12}{each.largest_logit:>26.2g}{each.kl:>12.5f}{each.same_top:>18.1%}{each.perplexity:>12.3f}")
    return differences


# -- free text against transformers -----------------------------------------------------------------------------------


def decode(engine: Engine, prompt: list[int], batch: int, tokens: int) -> float:
    """Seconds to make exactly `tokens` tokens greedily in each of `batch` sequences, prompt included."""
    started = time.perf_counter()
    for _ in range(batch):
        engine.submit(prompt, SamplingParams(max_tokens=tokens))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started


def _against_peer(
    models: dict[Precision, LlamaModel],
    chosen: Precision,
    peer: TransformersPeer,
    prompt: list[int],
    options: argparse.Namespace,
) -> dict[str, Any]:
    rounds, tokens = (3, 48) if options.quick else (7, 128)
    engines = {form: Engine(model, max_batch=BATCH, share_prefixes=False) for form, model in models.items()}
    peer.to_bfloat16()

    def contenders(count: int) -> dict[str, partial[float]]:
        found = {PEER: partial(peer.decode, prompt, count)}
        for form, engine in engines.items():
            found[form] = partial(decode, engine, prompt, 1, count)
            if form == chosen or not options.quick:
                found[f"{form} x{BATCH}"] = partial(decode, engine, prompt, BATCH, count)
        return found

    Rounds().take_turns(contenders(12))  # first calls allocate, and find how many threads are best
    timings = Rounds()
    for _ in range(rounds):
        torch.set_num_threads(options.threads)  # an engine on a busy machine may have lowered it
        timings.take_turns(contenders(tokens))
    _print_timings(timings, tokens, options.threads)
    return _figures(chosen, timings, tokens)


def _figures(form: Precision, timings: Rounds, tokens: int) -> dict[str, Any]:
    def per_token(name: str) -> float:
        return timings.median(name) / tokens * 1000

    def best(name: str) -> float:
        return timings.best(name) / tokens * 1000

    return {
        "ms_per_token": round(per_token(form), 2),
        "transformers_ms_per_token": round(per_token(PEER), 2),
        "ratio": round(timings.ratio(form, PEER), 3),
        "best_ms_per_token": round(best(form), 2),
        "transformers_best_ms_per_token": round(best(PEER), 2),
        "best_ratio": round(best(form) / best(PEER), 3),
        "throughput_1": round(1000 / per_token(form), 1),
        f"throughput_{BATCH}": round(BATCH * 1000 / per_token(f"{form} x{BATCH}"), 1),
        f"throughput_{BATCH}_gain": round(BATCH * timings.ratio(PEER, f"{form} x{BATCH}"), 2),
        "bfloat16_ms_per_token": round(per_token("bfloat16"), 2),
        "bfloat16_ratio": round(timings.ratio("bfloat16", PEER), 3),
    }


def _print_timings(timings: Rounds, tokens: int, threads: int) -> None:
    print(f"\n{tokens} tokens after a prompt of {PROMPT_TOKENS}, {threads} threads:")
    print(f"{'form':<22}{'ms per step: median':>20}{'best':>8}{'tokens/s':>12}{'against ' + PEER:>24}")
    for name in timings.costs:
        rows = BATCH if name.endswith(f" x{BATCH}") else 1
        step, best = timings.median(name) / tokens, timings.best(name) / tokens
        against = f"{timings.ratio(PEER, name) * rows:.2f}x the tokens/s"
        label = name + " bfloat16" * (name == PEER)
        print(f"{label:<22}{step * 1000:>20.2f}{best * 1000:>8.2f}{rows / step:>12.1f}{against:>24}")


# -- structured output ------------------------------------------------------------------------------------------------


def extraction_tasks(tokenizer: TokenizerFile) -> list[Task]:
    """The ten records, compact, asked for in the model's own words."""
    vocabulary = Vocabulary(tokenizer.tokens, tokenizer.eos_token_ids, encode=tokenizer.encode, size=tokenizer.size)
    tasks = []
    for number, each in enumerate(EXTRACTIONS):
        compiled = Grammar.from_json_schema(each.schema, whitespace="compact").compile(vocabulary)
        prompt = _chat(tokenizer, f"Extract the {each.name} as JSON from this text.\n\n{each.document}")
        tasks.append(Task(prompt, compiled.matcher, vocabulary.eos_token_ids, seed=number))
    return tasks


def _chat(tokenizer: TokenizerFile, text: str) -> list[int]:
    if tokenizer.backend is None:
        return tokenizer.encode(text.encode())
    ids: list[int] = tokenizer.backend.encode(
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    ).ids
    return ids


def _structured(model: LlamaModel, tokenizer: TokenizerFile, options: argparse.Namespace) -> dict[str, Any]:
    tasks = extraction_tasks(tokenizer)
    if options.quick:  # those with short records
        tasks = [tasks[number] for number in QUICK]
    rounds = 1 if options.quick else 5

    serial = Engine(TorchRunner(model, max_batch=BATCH), jump_forward=False)
    deep = Engine(TorchRunner(model, max_batch=BATCH, threaded=True), depth=2, jump_forward=False)
    writers = {
        "constrained": Writer(serial),
        "jump-forward": Writer(Engine(TorchRunner(model, max_batch=BATCH))),
        "depth 2": Writer(deep),
    }
    writers["free"] = Writer(serial, like=writers["constrained"])
    one = Contest.hold(writers, [[task] for task in tasks], rounds)
    load, jumps = writers["constrained"].load, writers["jump-forward"].load
    many = Contest.hold(writers, [(tasks + tasks)[:BATCH]], 2 * rounds, warm=True)
    many_bubble = writers["constrained"].load.bubble_percent
    deep.close()
    print(
        f"\n{len(tasks)} records, compact, {sum(one.weights)} tokens; tokens/s over free text at batch 1 and {BATCH}:"
    )
    for name in writers:
        milliseconds = one.seconds_per_token(name) * 1000
        print(f"{name:<16}{milliseconds:>8.2f} ms a token{one.gain(name, 'free'):>8.3f}{many.gain(name, 'free'):>8.3f}")
    print(
        f"jump-forward: {jumps.forced / jumps.tokens:.0%} of the tokens forced, "
        f"{jumps.steps / jumps.tokens:.2f} steps a token"
    )
    return {
        "constrained_ratio": round(one.gain("constrained", "free"), 3),
        f"constrained_ratio_{BATCH}": round(many.gain("constrained", "free"), 3),
        "jump_forward_ratio": round(one.total_gain("jump-forward", "free"), 2),
        f"jump_forward_ratio_{BATCH}": round(many.gain("jump-forward", "free"), 2),
        "jump_forward_ms_per_token": round(one.seconds_per_token("jump-forward") * 1000, 2),
        "forced_share": round(jumps.forced / jumps.tokens, 3),
        "depth2_gain": round(one.gain("depth 2", "constrained"), 3),
        f"depth2_gain_{BATCH}": round(many.gain("depth 2", "constrained"), 3),
        "bubble_pct": round(load.bubble_percent, 2),
        f"bubble_pct_{BATCH}": round(many_bubble, 2),
    }
