"""What a grammar is made of, and what its masks look like and cost along a text: for `structgen inspect`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from structgen.grammar.compiler import CompiledGrammar
from structgen.grammar.grammar import Grammar
from structgen.grammar.matcher import Matcher
from structgen.grammar.program import Program
from structgen.grammar.program_rules import Rule, ops_of, rules_of
from structgen.grammar.tables import Array
from structgen.grammar.vocabulary import Vocabulary

EXAMPLES = 8  # tokens shown where a text is refused


@dataclass(frozen=True)
class Step:
    """The mask before one token of the text; the last step, with token_id None, is behind the text.

    `first_us` is the mask computed (microseconds), `again_us` the same mask when it is known already.
    """

    offset: int
    token_id: int | None
    text: str
    allowed: int
    density: float
    first_us: float
    again_us: float
    min_tokens: int
    forced: int


@dataclass(frozen=True)
class Refusal:
    """`offset`: the first byte of the text that nothing allowed begins with; `instead`: some tokens that are."""

    offset: int
    text: str
    instead: list[str]


@dataclass(frozen=True)
class Inspection:
    kind: str
    tokens: int
    build_us: float  # from the schema or regex to the program
    compile_us: float  # with the vocabulary
    states: int
    edges: int
    ops: dict[str, int]
    rules: list[Rule]
    min_tokens: int
    steps: list[Step] = field(default_factory=list)
    refusal: Refusal | None = None
    complete: bool | None = None  # whether the text is a whole value; None without a text
    stats: dict[str, int] = field(default_factory=dict)


def inspect_grammar(
    make: Callable[[], Grammar],
    vocabulary: Vocabulary,
    text: str | None = None,
    pointers: Callable[[Program], Mapping[int, str]] | None = None,
) -> Inspection:
    """Build a grammar, take it apart and follow a text through it.

    Args:
        make: builds the grammar. All is done twice, so that times are those of a process that has run before.
        pointers: says where in a schema the rules of a program come from.
    Raises:
        GrammarError: what `make` and compiling raise.
    """
    _follow(make().compile(vocabulary), (text or "").encode())
    start = time.perf_counter()
    grammar = make()
    built = time.perf_counter()
    compiled = grammar.compile(vocabulary)
    done = time.perf_counter()
    program = grammar.program
    steps, refusal, complete = ([], None, None) if text is None else _follow(compiled, text.encode())
    return Inspection(
        kind=grammar.kind,
        tokens=vocabulary.size,
        build_us=(built - start) * 1e6,
        compile_us=(done - built) * 1e6,
        states=program.size,
        edges=len(program.edges),
        ops=ops_of(program),
        rules=rules_of(program, pointers(program) if pointers is not None else {}),
        min_tokens=compiled.matcher().min_tokens_to_complete,
        steps=steps,
        refusal=refusal,
        complete=complete,
        stats=compiled.stats(),
    )


def _follow(compiled: CompiledGrammar, text: bytes) -> tuple[list[Step], Refusal | None, bool]:
    """The masks along a text; where it is refused; whether it is a whole value."""
    vocabulary, matcher = compiled.vocabulary, compiled.matcher()
    try:
        ids = vocabulary.encode(text)
    except ValueError:
        return [], _refusal(compiled, text), False
    steps: list[Step] = []
    offset = 0
    for token in ids:
        spelled = vocabulary.tokens[token] or b""
        steps.append(_step(matcher, offset, token, spelled))
        if not matcher.accept(token):
            return steps, _refusal(compiled, text), False
        offset += len(spelled)
    steps.append(_step(matcher, offset, None, b""))
    return steps, None, matcher.is_complete


def _step(matcher: Matcher, offset: int, token: int | None, spelled: bytes) -> Step:
    row = np.zeros(matcher.compiled.vocabulary.mask_words, np.int32)
    first = _timed(matcher, row)
    again = min(_timed(matcher, row) for _ in range(5))
    allowed = len(_tokens_of(row))
    return Step(
        offset=offset,
        token_id=token,
        text=spelled.decode("utf-8", "replace"),
        allowed=allowed,
        density=allowed / matcher.compiled.vocabulary.size,
        first_us=first,
        again_us=again,
        min_tokens=matcher.min_tokens_to_complete,
        forced=len(matcher.forced_tokens()),
    )


def _timed(matcher: Matcher, row: Array) -> float:
    """Microseconds of one mask."""
    start = time.perf_counter()
    matcher.fill_mask(row)
    return (time.perf_counter() - start) * 1e6


def _tokens_of(row: Array) -> list[int]:
    return list(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def _refusal(compiled: CompiledGrammar, text: bytes) -> Refusal | None:
    """Read byte by byte, whatever the tokens are."""
    matcher, vocabulary = compiled.matcher(), compiled.vocabulary
    for offset in range(len(text)):
        if not matcher.accept_string(text[offset : offset + 1]):
            row = np.zeros(vocabulary.mask_words, np.int32)
            matcher.fill_mask(row)
            allowed = _tokens_of(row)
            shown = sorted(
                {vocabulary.tokens[i] or b"" for i in allowed} - {b""}, key=lambda token: (len(token), token)
            )
            ends = ["end of text"] if vocabulary.eos_token_ids.intersection(allowed) else []
            instead = [repr(token.decode("utf-8", "backslashreplace")) for token in shown[:EXAMPLES]]
            return Refusal(offset, text[offset : offset + 20].decode("utf-8", "replace"), instead + ends)
    return Refusal(len(text), "", [])
