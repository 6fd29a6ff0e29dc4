"""Random grammars with left recursion, empty rules and ambiguity, against recognisers that know no automata."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import pytest

from structgen.grammar import Grammar, GrammarLimitError, Matcher, UnsatisfiableError, Vocabulary

Allowed = Callable[..., set[int]]

LETTERS = "abc"
TEXTS = ["".join(one) for length in range(5) for one in product(LETTERS[:2], repeat=length)]


@dataclass(frozen=True)
class Item:
    """A letter (lower case) or a rule (upper case), repeated."""

    symbol: str
    least: int = 1
    most: int | None = 1

    def written(self, notation: str) -> str:
        symbol = f'"{self.symbol}"' if self.symbol.islower() else self.symbol.lower()
        plain = {(1, 1): "", (0, 1): "?", (0, None): "*", (1, None): "+"}
        if (self.least, self.most) in plain:
            return symbol + plain[self.least, self.most]
        if notation == "gbnf":
            return f"{symbol}{{{self.least},{self.most}}}"
        return f"{symbol} ~ {self.least}..{self.most}"


Rules = dict[str, list[list[Item]]]
REPEATS: list[tuple[int, int | None]] = [(1, 1)] * 12 + [(0, 1), (0, None), (1, None), (0, 2), (2, 3)]


def random_rules(seed: int) -> Rules:
    """Rules named X, Y, ...; X is the start. Half of their alternatives begin with a rule."""
    chance = random.Random(seed)
    names = "XYZWV"[: chance.randint(1, 5)]
    letters = LETTERS[: chance.randint(1, 2)]

    def item() -> Item:
        symbol = chance.choice(names if chance.random() < 0.5 else letters)
        return Item(symbol, *chance.choice(REPEATS))

    return {
        name: [[item() for _ in range(chance.randint(0, 3))] for _ in range(chance.randint(1, 3))] for name in names
    }


def written(rules: Rules, notation: str) -> str:
    sign = " ::= " if notation == "gbnf" else ": "
    lines = []
    for name, options in rules.items():
        texts = [" ".join(item.written(notation) for item in option) for option in options]
        if notation == "gbnf":
            texts = [text or '""' for text in texts]
        lines.append(name.lower() + sign + " | ".join(texts))
    return "\n".join(lines) + "\n"


class Recogniser:
    """Which pieces of a text each rule matches: a least fixpoint over all pieces, by the definition."""

    def __init__(self, rules: Rules, text: str) -> None:
        self.rules, self.text = rules, text
        self.found: dict[str, set[tuple[int, int]]] = {name: set() for name in rules}
        while self.round():
            pass

    def round(self) -> bool:
        changed = False
        for name, options in self.rules.items():
            for start in range(len(self.text) + 1):
                ends = {end for option in options for end in self.behind(option, start)}
                new = {(start, end) for end in ends} - self.found[name]
                self.found[name] |= new
                changed = changed or bool(new)
        return changed

    def behind(self, option: list[Item], start: int) -> set[int]:
        places = {start}
        for item in option:
            count, reached, places = 0, places, set()
            # More rounds than this reach nothing new.
            limit = len(self.text) + 1 + item.least if item.most is None else item.most
            while True:
                if count >= item.least:
                    places |= reached
                if count == limit:
                    break
                reached = {end for place in reached for end in self.step(item.symbol, place)}
                count += 1
        return places

    def step(self, symbol: str, start: int) -> set[int]:
        if symbol.islower():
            return {start + 1} if self.text.startswith(symbol, start) else set()
        return {end for first, end in self.found[symbol] if first == start}

    @property
    def accepts(self) -> bool:
        return (0, len(self.text)) in self.found["X"]


def compiled(rules: Rules, notation: str) -> Grammar | None:
    """None when nothing matches."""
    try:
        return Grammar.from_ebnf(written(rules, notation), syntax=notation, start="x")  # type: ignore[arg-type]
    except UnsatisfiableError:
        return None


class Found:
    """What the automaton says of texts. A few grammars have too many readings of a text: those are counted."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.unclear = 0

    def accepts(self, grammar: Grammar | None, texts: list[str]) -> Iterator[tuple[str, bool]]:
        """Each text, and whether it matches; ends early when the grammar is too ambiguous."""
        automaton = grammar.compile(self.vocabulary) if grammar else None
        for text in texts:
            matcher = automaton.matcher() if automaton else None
            try:
                yield text, matcher is not None and matcher.accept_string(text) and matcher.is_complete
            except GrammarLimitError:
                self.unclear += 1
                return


@pytest.mark.parametrize("block", range(10))
def test_same_language_as_the_definition(block: int, bytes_only: Vocabulary) -> None:
    found = Found(bytes_only)
    for seed in range(block * 30, block * 30 + 30):
        rules = random_rules(seed)
        grammar = compiled(rules, "gbnf" if seed % 2 else "lark")
        for text, accepted in found.accepts(grammar, TEXTS):
            assert accepted == Recogniser(rules, text).accepts, (seed, text, written(rules, "gbnf"))
    assert found.unclear <= 1


def walk(matcher: Matcher, allowed: Allowed, chance: random.Random) -> bytes:
    """A text from tokens that masks allow; the last ones under a budget, so that it ends."""
    text = b""
    steps, budget = chance.randint(0, 6), 0
    while not matcher.is_terminated:
        if steps == 0:
            budget = matcher.min_tokens_to_complete
        tokens = sorted(allowed(matcher, budget if steps <= 0 else None))
        assert tokens
        token = chance.choice(tokens)
        assert matcher.accept(token)
        text += matcher.compiled.vocabulary.tokens[token] or b""
        steps, budget = steps - 1, budget - 1
    return text


@pytest.mark.parametrize("block", range(4))
def test_masks_lead_to_texts_of_the_language(block: int, small_vocabulary: Vocabulary, allowed: Allowed) -> None:
    unclear = 0
    for seed in range(1000 + block * 20, 1020 + block * 20):
        rules, chance = random_rules(seed), random.Random(seed)
        grammar = compiled(rules, "gbnf")
        for _ in range(3 if grammar else 0):
            assert grammar is not None
            try:
                text = walk(grammar.compile(small_vocabulary).matcher(), allowed, chance).decode()
            except GrammarLimitError:
                unclear += 1
                break
            assert Recogniser(rules, text).accepts, (seed, text, written(rules, "gbnf"))
    assert unclear <= 2


@pytest.mark.parametrize("block", range(2))
def test_masks_miss_nothing(block: int, bytes_only: Vocabulary, allowed: Allowed) -> None:
    """Every text of the language can be written letter by letter, and ended."""
    unclear = 0
    for seed in range(2000 + block * 30, 2030 + block * 30):
        rules = random_rules(seed)
        grammar = compiled(rules, "lark")
        try:
            for text in (one for one in TEXTS if Recogniser(rules, one).accepts):
                assert grammar is not None
                matcher = grammar.compile(bytes_only).matcher()
                for letter in text.encode():
                    assert letter in allowed(matcher)
                    assert matcher.accept(letter)
                assert allowed(matcher) & bytes_only.eos_token_ids
        except GrammarLimitError:
            unclear += 1
    assert unclear <= 2


def test_same_language_as_the_lark_package(bytes_only: Vocabulary) -> None:
    lark = pytest.importorskip("lark", reason="the package lark is not installed: its parser is not compared with")
    found, compared = Found(bytes_only), 0
    for seed in range(3000, 3080):
        notation = written(random_rules(seed), "lark")
        try:
            parser = lark.Lark(notation, start="x", parser="earley", lexer="dynamic_complete")
        except lark.exceptions.GrammarError:
            continue  # it refuses alternatives that are equal
        for text, accepted in found.accepts(compiled(random_rules(seed), "lark"), TEXTS[:15]):
            try:
                parser.parse(text)
                expected = True
            except lark.exceptions.LarkError:
                expected = False
            assert accepted == expected, (seed, text, notation)
        compared += 1
    assert compared >= 20
    assert found.unclear <= 1
