"""Benchmarks of the grammar room: `python -m structgen.grammar.bench maskbench|corpus|blowups|hot|heavy`.

The last line of each is one JSON object. Peers (llguidance, xgrammar) are in the `bench` extra.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from structgen.grammar.bench_blowups import run_blowups
from structgen.grammar.bench_corpus import run_corpus
from structgen.grammar.bench_maskbench import run_maskbench, spread
from structgen.grammar.compiler import fill_masks
from structgen.grammar.errors import GrammarError
from structgen.grammar.grammar import Grammar
from structgen.grammar.vocabulary import Vocabulary

HEAVY: dict[str, Callable[[], Grammar]] = {
    "(a+)+b": lambda: Grammar.from_regex("(a+)+b"),
    "((a{1,100}){1,100}){1,100}": lambda: Grammar.from_regex("((a{1,100}){1,100}){1,100}"),
    "[ab]*a[ab]{24}": lambda: Grammar.from_regex("[ab]*a[ab]{24}"),
    ".{0,50000}": lambda: Grammar.from_regex(".{0,50000}"),
    r"\p{L}{1,200}": lambda: Grammar.from_regex(r"\p{L}{1,200}"),
    "30,000 nested parentheses": lambda: Grammar.from_regex("(" * 30_000 + "a" + ")" * 30_000),
    "an enum of 100,000 strings": lambda: Grammar.from_json_schema(
        {"enum": [f"value {i * 7919}" for i in range(10**5)]}
    ),
    "1,000-deep objects": lambda: Grammar.from_json_schema(_nested(1_000)),
    "maxLength 10^6": lambda: Grammar.from_json_schema({"type": "string", "maxLength": 10**6}),
    "minItems 10^5": lambda: Grammar.from_json_schema({"type": "array", "items": {"type": "null"}, "minItems": 10**5}),
}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


def load_vocabulary(path: str | None) -> Vocabulary:
    """A real vocabulary of about 128k tokens: the given file, or one that an installed package carries."""
    if path is not None:
        return Vocabulary.from_tokenizer(path)
    for package, file in (("llama_models", "llama3/tokenizer.model"), ("mistral_common", "data/tekken_240911.json")):
        try:
            module = __import__(package)
        except ImportError:
            continue
        found = Path(module.__path__[0]) / file
        if found.exists():
            return Vocabulary.from_tokenizer(found)
    raise SystemExit("no large tokenizer: pip install --no-deps llama-models, or give --tokenizer FILE")


def run_hot(vocabulary: Vocabulary) -> dict[str, Any]:
    """Masks of grammars that were seen before: one matcher, and a batch of 64 different ones."""
    texts = ['{"name": "Ada Lovelace", "age": 36}', '{"name": "Zoë", "age": 7}']
    grammars = [_record_schema(i) for i in range(64)]
    compiled = [Grammar.from_json_schema(schema).compile(vocabulary) for schema in grammars]
    rows = np.zeros((64, vocabulary.mask_words), np.int32)
    tokens = [vocabulary.encode(text.encode()) for text in texts]
    single: list[float] = []
    for repeat in range(40):
        for text in tokens:
            matcher = compiled[0].matcher()
            for token in text:
                start = time.perf_counter()
                matcher.fill_mask(rows[0])
                if repeat:
                    single.append((time.perf_counter() - start) * 1e6)
                matcher.accept(token)
    batch: list[float] = []
    for repeat in range(20):
        matchers = [one.matcher() for one in compiled]
        for token in tokens[0][:12]:
            start = time.perf_counter()
            fill_masks(matchers, rows)
            if repeat:
                batch.append((time.perf_counter() - start) * 1e6)
            for matcher in matchers:
                matcher.accept(token)
    print(f"one mask, us:      {spread(single)}\nbatch of 64, us:   {spread(batch)}")
    return {"hot_mask_us": spread(single), "hot_batch_64_us": spread(batch), "vocabulary": vocabulary.size}


def _record_schema(number: int) -> dict[str, Any]:
    properties = {"name": {"type": "string"}, "age": {"type": "integer"}, f"extra{number}": {"type": "boolean"}}
    return {"type": "object", "properties": properties, "required": ["name", "age"], "additionalProperties": False}


def run_heavy(vocabulary: Vocabulary) -> dict[str, Any]:
    """Inputs that break other engines: seconds for compiling and the first mask, and the growth of peak memory."""
    result: dict[str, Any] = {}
    for name, make in HEAVY.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        try:
            matcher = make().compile(vocabulary).matcher()
            matcher.fill_mask(np.zeros(vocabulary.mask_words, np.int32))
            outcome = "ok"
        except GrammarError as error:
            outcome = type(error).__name__
        seconds = time.perf_counter() - start
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        print(f"{name:30} {outcome:20} {seconds:7.3f} s  {memory:5} MB")
        result[name] = {"outcome": outcome, "seconds": round(seconds, 3), "megabytes": memory}
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m structgen.grammar.bench", description=__doc__)
    parser.add_argument("--tokenizer", help="tokenizer file; default: the one of an installed package")
    commands = parser.add_subparsers(dest="command", required=True)
    maskbench = commands.add_parser("maskbench", help="replay schemas and instances with several engines")
    maskbench.add_argument("data", type=Path, help="maskbench-*.jsonl.gz")
    maskbench.add_argument("--every", type=int, default=1, help="take every n-th schema")
    maskbench.add_argument("--engines", default="structgen,llguidance,xgrammar", help="comma-separated")
    corpus = commands.add_parser("corpus", help="right or wrong on every instance, by bytes, in both orders")
    corpus.add_argument("data", type=Path, help="maskbench-*.jsonl.gz")
    corpus.add_argument("--every", type=int, default=1, help="take every n-th schema")
    commands.add_parser("blowups", help="schemas that double when written out: seconds and memory")
    commands.add_parser("hot", help="masks of grammars seen before")
    commands.add_parser("heavy", help="inputs that break other engines")
    options = parser.parse_args(arguments)
    if options.command == "corpus":
        print(json.dumps(run_corpus(options.data, options.every)))
        return 0
    if options.command == "blowups":
        print(json.dumps(run_blowups()))
        return 0
    vocabulary = load_vocabulary(options.tokenizer)
    _ = vocabulary.trie, vocabulary.plain_text
    Grammar.any_json().compile(vocabulary).matcher().fill_mask(np.zeros(vocabulary.mask_words, np.int32))
    if options.command == "maskbench":
        result = run_maskbench(options.data, vocabulary, options.engines.split(","), options.every)
    else:
        result = {"hot": run_hot, "heavy": run_heavy}[options.command](vocabulary)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
