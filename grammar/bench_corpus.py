"""Correctness on a whole corpus: every instance of every schema, byte by byte, in any and in the schema's order.

`python -m structgen.grammar.bench corpus FILE [--every N]`. A schema is right when its valid instances are accepted to
the end, complete there, and its invalid ones are not. In the schema's own order an instance may be rejected for its
order alone: that is told by asking the grammar that takes every order.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from structgen.grammar.bench_maskbench import read_cases, spread
from structgen.grammar.compiler import CompiledGrammar
from structgen.grammar.errors import GrammarError, UnsatisfiableError
from structgen.grammar.grammar import Grammar
from structgen.grammar.vocabulary import Vocabulary

ORDERS = ("any", "schema")
SECONDS = 10.0  # for one schema and its instances, in one order
SHOWN = 20  # faults that are printed


class TimeoutReached(Exception):
    """A schema took longer than it may."""


@dataclass
class Account:
    """What happened in one order. Faults are (schema id, instance or message)."""

    right: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong_rejects: list[tuple[str, str]] = field(default_factory=list)
    by_order_alone: list[tuple[str, str]] = field(default_factory=list)
    wrong_accepts: list[tuple[str, str]] = field(default_factory=list)
    incomplete: list[tuple[str, str]] = field(default_factory=list)
    timeouts: list[tuple[str, str]] = field(default_factory=list)
    limits: list[tuple[str, str]] = field(default_factory=list)  # a GrammarLimitError after compiling
    compiles: list[float] = field(default_factory=list)  # microseconds

    def summary(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "refused": sum(self.refused.values()),
            "wrong_reject": len(self.wrong_rejects),
            "wrong_reject_by_order_alone": len(self.by_order_alone),
            "wrong_accept": len(self.wrong_accepts),
            "incomplete": len(self.incomplete),
            "timeout": len(self.timeouts),
            "limit_while_reading": len(self.limits),
            "reasons": dict(self.refused.most_common()),
            "compile_us": spread(self.compiles),
        }

    def faults(self) -> Iterator[tuple[str, str, str]]:
        for kind in ("wrong_accepts", "wrong_rejects", "incomplete", "timeouts", "limits"):
            for name, text in getattr(self, kind):
                yield kind, name, text


def byte_vocabulary() -> Vocabulary:
    """The 256 bytes, and an end."""
    return Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [256])


def run_corpus(path: Path, every: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Replay all schemas; prints the faults and refusals, returns the numbers."""
    vocabulary = byte_vocabulary()
    read(Grammar.any_json().compile(vocabulary), '{"warm": ["up"]}')
    accounts = {order: Account() for order in ORDERS}
    count = 0
    for count, case in enumerate(read_cases(path, every), 1):
        in_any_order: CompiledGrammar | None = None
        for order, account in accounts.items():
            compiled = replay(case, vocabulary, order, account, in_any_order, seconds)
            in_any_order = in_any_order or compiled
        if count % 100 == 0:
            print(f"\r{count} schemas", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for order, account in accounts.items():
        _print(order, account, count)
    return {"schemas": count, "orders": {order: account.summary() for order, account in accounts.items()}}


def replay(
    case: dict[str, Any],
    vocabulary: Vocabulary,
    order: str,
    account: Account,
    in_any_order: CompiledGrammar | None,
    seconds: float = SECONDS,
) -> CompiledGrammar | None:
    """Compile one schema and read its instances; the compiled grammar, if there is one."""
    compiled: CompiledGrammar | None = None
    try:
        with _deadline(seconds):
            start = time.perf_counter()
            try:
                compiled = Grammar.from_json_schema(case["schema"], property_order=order).compile(vocabulary)
            except GrammarError as error:
                _take_refusal(case, error, account)
                return None
            finally:
                account.compiles.append((time.perf_counter() - start) * 1e6)
            _take_instances(case, compiled, account, in_any_order)
    except TimeoutReached:
        account.timeouts.append((case["id"], f"more than {seconds:g} s"))
    return compiled


def _take_refusal(case: dict[str, Any], error: GrammarError, account: Account) -> None:
    if not isinstance(error, UnsatisfiableError):
        account.refused[reason(error)] += 1
    elif any(test["valid"] for test in case["tests"]):
        account.wrong_rejects.append((case["id"], str(error)))
    else:
        account.right += 1


def reason(error: GrammarError) -> str:
    """What a refusal is about, without the numbers of the place."""
    return re.sub(r"\d+(?:,\d{3})*", "N", error.message)[:70]


def _take_instances(
    case: dict[str, Any], compiled: CompiledGrammar, account: Account, in_any_order: CompiledGrammar | None
) -> None:
    right = True
    for test in case["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False)
        place = (case["id"], text[:300])
        try:
            verdict = read(compiled, text)
            if (verdict == "complete") == test["valid"]:
                continue
            right = False
            if not test["valid"]:
                account.wrong_accepts.append(place)
            elif in_any_order is not None and read(in_any_order, text) == "complete":
                account.by_order_alone.append(place)
            else:
                (account.incomplete if verdict == "incomplete" else account.wrong_rejects).append(place)
        except GrammarError as error:
            right = False
            account.limits.append((case["id"], str(error)))
    account.right += right


def read(compiled: CompiledGrammar, text: str) -> str:
    """ "complete", "incomplete" (accepted, but not the whole of a value) or "rejected"."""
    try:
        data = text.encode()
    except UnicodeEncodeError:  # lone surrogates are no JSON that can be sent
        return "rejected"
    matcher = compiled.matcher()
    if not matcher.accept_string(data):
        return "rejected"
    return "complete" if matcher.is_complete else "incomplete"


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Stop after so many seconds of the processor, at the next step of the interpreter."""

    def stop(*_: Any) -> None:
        raise TimeoutReached

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _print(order: str, account: Account, schemas: int) -> None:
    share = 100 * account.right / max(1, schemas)
    counts = {name: value for name, value in account.summary().items() if isinstance(value, int)}
    print(f"\nproperty_order={order!r}: {share:.2f} % right; " + ", ".join(f"{n} {v}" for n, v in counts.items()))
    for why, count in account.refused.most_common():
        print(f"  refused {count:5}  {why}")
    for kind, name, text in list(account.faults())[:SHOWN]:
        print(f"  {kind}: {name}: {text!a}")
