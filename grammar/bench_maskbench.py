"""Replay MaskBench: schemas with valid and invalid instances, token by token, with several engines in one run."""

from __future__ import annotations

import gc
import gzip
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from structgen.grammar.bench_peers import Peer, Refused, Structgen, make_peer, new_row
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.vocabulary import Vocabulary
from structgen.grammar.warm_up import warm_up

PERCENTILES = (50, 90, 99, 99.9)
# Rows of their own: the schemas that the fastest peer takes too, and those that it does not.
SHARED, BEYOND = "structgen, taken by llguidance", "structgen, refused by llguidance"


@dataclass
class Tally:
    """What one engine did. Times in microseconds."""

    masks: list[float] = field(default_factory=list)
    compiles: list[float] = field(default_factory=list)
    first_masks: list[float] = field(default_factory=list)  # compile and first mask
    right: int = 0
    refused: int = 0
    wrong_rejects: list[str] = field(default_factory=list)
    wrong_accepts: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)  # given up while reading
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Take over what another tally has."""
        for one in fields(self):
            mine, more = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, dict):
                for reason, count in more.items():
                    mine[reason] = mine.get(reason, 0) + count
            else:
                setattr(self, one.name, mine + more)

    def summary(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "refused": self.refused,
            "wrong_reject": len(self.wrong_rejects),
            "wrong_accept": len(self.wrong_accepts),
            "incomplete": len(self.incomplete),
            "limit_while_reading": len(self.limits),
            "mask_us": spread(self.masks),
            "compile_us": spread(self.compiles),
            "compile_and_first_mask_us": spread(self.first_masks),
        }


def spread(values: list[float]) -> dict[str, float]:
    """Mean, percentiles and maximum, to a tenth."""
    if not values:
        return {}
    array = np.array(values)
    found = {f"p{p:g}": round(float(np.percentile(array, p)), 1) for p in PERCENTILES}
    return {"mean": round(float(array.mean()), 1), **found, "max": round(float(array.max()), 1)}


def read_cases(path: Path, every: int) -> Iterator[dict[str, Any]]:
    """Every `every`-th line of a gzipped JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                yield json.loads(line)


def run_maskbench(path: Path, vocabulary: Vocabulary, names: list[str], every: int) -> dict[str, Any]:
    """Replay with all engines, schema by schema in turn; prints a table, returns the numbers."""
    peers = [make_peer(name, vocabulary) for name in names]
    tallies = {peer.name: Tally() for peer in peers}
    if {"structgen", "llguidance"} <= tallies.keys():
        tallies |= {SHARED: Tally(), BEYOND: Tally()}
    correctness = Structgen(vocabulary, property_order="any") if "structgen" in names else None
    _warm_up(peers, vocabulary)
    cases = list(read_cases(path, every))
    for number, case in enumerate(cases):
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in case["tests"]]
        encoded = [_encode(vocabulary, text) for text in texts]
        gc.collect(0)
        found = {peer.name: _tally(peer, correctness, case, encoded, vocabulary) for peer in peers}
        for name, tally in found.items():
            tallies[name].add(tally)
        if BEYOND in tallies:
            tallies[BEYOND if found["llguidance"].refused else SHARED].add(found["structgen"])
        if sys.stderr.isatty() or number % 50 == 0:
            print(f"\r{number + 1}/{len(cases)} schemas", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    result = {name: tally.summary() for name, tally in tallies.items()}
    _print_tables(tallies, len(cases))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"schemas": len(cases), "vocabulary": vocabulary.size, "peak_memory_mb": peak, "engines": result}


def _tally(
    peer: Peer,
    correctness: Structgen | None,
    case: dict[str, Any],
    encoded: list[list[int] | None],
    vocabulary: Vocabulary,
) -> Tally:
    tally = Tally()
    if peer.name == "structgen" and correctness is not None:
        # Correctness in any order of properties, speed in the schema's own: see the README.
        _replay(correctness, case, encoded, vocabulary, tally, timed=False)
        _replay(peer, case, encoded, vocabulary, tally, judged=False)
    else:
        _replay(peer, case, encoded, vocabulary, tally)
    return tally


def _encode(vocabulary: Vocabulary, text: str) -> list[int] | None:
    try:
        return vocabulary.encode(text.encode())
    except ValueError:  # lone surrogates
        return None


def _warm_up(peers: list[Peer], vocabulary: Vocabulary) -> None:
    warm_up()  # as after `structgen models pull`: compiled functions are there
    case = {"id": "", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}, "tests": []}
    text: list[list[int] | None] = [vocabulary.encode(b'{"a": "b"}')]
    for peer in peers:
        _replay(peer, {**case, "tests": [{"valid": True}]}, text, vocabulary, Tally())


def _replay(
    peer: Peer,
    case: dict[str, Any],
    encoded: list[list[int] | None],
    vocabulary: Vocabulary,
    tally: Tally,
    *,
    timed: bool = True,
    judged: bool = True,
) -> None:
    clock = time.perf_counter
    start = clock()
    try:
        compiled = peer.compile(case["schema"])
    except Refused as error:
        if timed:
            tally.compiles.append((clock() - start) * 1e6)
        if judged:
            tally.refused += 1
            reason = str(error).split(": ")[-1][:60]
            tally.reasons[reason] = tally.reasons.get(reason, 0) + 1
        return
    compile_time = (clock() - start) * 1e6
    row = new_row(vocabulary)
    begun = clock()
    peer.session(compiled).fill(row)
    if timed:
        tally.compiles.append(compile_time)
        tally.first_masks.append(compile_time + (clock() - begun) * 1e6)
    right = True
    for test, tokens in zip(case["tests"], encoded, strict=True):
        verdict = (
            "rejected" if tokens is None else _feed(peer.session(compiled), tokens, row, tally.masks if timed else [])
        )
        if not judged or (verdict == "complete") == test["valid"]:
            continue
        right = False
        if verdict == "limit":
            tally.limits.append(case["id"])
        elif not test["valid"]:
            tally.wrong_accepts.append(case["id"])
        elif verdict == "incomplete":
            tally.incomplete.append(case["id"])
        else:
            tally.wrong_rejects.append(case["id"])
    tally.right += judged and right


def _feed(session: Any, tokens: list[int], row: Any, times: list[float]) -> str:
    try:
        return _read(session, tokens, row, times)
    except GrammarLimitError:
        return "limit"


def _read(session: Any, tokens: list[int], row: Any, times: list[float]) -> str:
    clock = time.perf_counter
    fill, accept = session.fill, session.accept
    for token in tokens:
        start = clock()
        fill(row)
        allowed = bool(row[token >> 5] >> (token & 31) & 1)
        taken = allowed and accept(token)
        times.append((clock() - start) * 1e6)
        if not taken:
            return "rejected"
    return "complete" if session.is_complete() else "incomplete"


def _print_tables(tallies: dict[str, Tally], schemas: int) -> None:
    print(f"{schemas} schemas")
    print(f"{'':32} {'right':>6} {'refused':>8} {'wrong reject':>13} {'wrong accept':>13} {'incomplete':>11}")
    for name, tally in tallies.items():
        counts = (len(tally.wrong_rejects), len(tally.wrong_accepts), len(tally.incomplete))
        print(f"{name:32} {tally.right:6} {tally.refused:8} {counts[0]:13} {counts[1]:13} {counts[2]:11}")
    for title, attribute in (
        ("mask (fill + accept), us", "masks"),
        ("compile, us", "compiles"),
        ("compile + first mask, us", "first_masks"),
    ):
        print(f"\n{title:32} {'mean':>10} {'p50':>10} {'p90':>10} {'p99':>10} {'p99.9':>10} {'max':>12}")
        for name, tally in tallies.items():
            values = spread(getattr(tally, attribute))
            print(f"{name:32} " + " ".join(f"{value:10.1f}" for value in values.values()))
    for name, tally in tallies.items():
        if tally.reasons:
            top = sorted(tally.reasons.items(), key=lambda item: -item[1])[:12]
            print(f"\n{name} refuses: " + "; ".join(f"{reason} ({count})" for reason, count in top))
