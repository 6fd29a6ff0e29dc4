"""Grammars in GBNF and Lark's notation: one corpus of texts and faults, the examples, limits."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from structgen.grammar import Grammar, GrammarError, GrammarLimitError, GrammarSyntaxError, UnsatisfiableError

ROOT = Path(__file__).parents[2]
CORPUS = tomllib.loads((ROOT / "tests" / "data" / "ebnf_cases.toml").read_text("utf-8"))
EXAMPLES = ROOT / "examples" / "grammars"

Matches = Callable[[Grammar, str | bytes], bool]
Notation = Literal["gbnf", "lark"]


def corpus(*, refused: bool) -> list[Any]:
    """Cases by notation: (notation, case)."""
    return [
        pytest.param(notation, case, id=f"{notation}: {case['name']}")
        for case in CORPUS["case"]
        for notation in ("gbnf", "lark")
        if notation in case and ("error" in case) == refused
    ]


def check_texts(grammar: Grammar, case: dict[str, Any], matches: Matches) -> None:
    for text in case["accept"]:
        assert matches(grammar, text), text
    for text in case["reject"]:
        assert not matches(grammar, text), text


@pytest.mark.parametrize(("notation", "sample"), corpus(refused=False))
def test_texts(notation: Notation, sample: dict[str, Any], matches: Matches) -> None:
    grammar = Grammar.from_ebnf(sample[notation], syntax=notation)
    assert grammar.kind == "ebnf"
    check_texts(grammar, sample, matches)


@pytest.mark.parametrize(("notation", "sample"), corpus(refused=True))
def test_refused(notation: Notation, sample: dict[str, Any]) -> None:
    text = sample[notation]
    with pytest.raises(GrammarError) as caught:
        Grammar.from_ebnf(text, syntax=notation)
    error = caught.value
    assert sample["error"] in error.message
    assert sample.get("hint", "") in error.hint
    assert error.hint
    assert error.position is not None
    before = text[: error.position].split("\n")
    assert (len(before), len(before[-1]) + 1) == (sample["line"], sample["column"])


def test_the_caret_stands_below_the_fault() -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        Grammar.from_ebnf('root ::= x\nx ::=\t"é" missing | "b"\n')
    assert caught.value.message.split("\n") == [
        "the rule missing is not defined (line 2, column 11)",
        '    x ::=\t"é" missing | "b"',
        "         \t    ^",
    ]


def test_long_lines_are_cut_around_the_fault() -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        Grammar.from_ebnf("root ::= " + '"a" ' * 1000 + "missing" + ' "b"' * 1000)
    _, excerpt, caret = caught.value.message.split("\n")
    assert len(excerpt) < 140
    assert excerpt[caret.index("^") :].startswith("missing")


@pytest.mark.parametrize("sample", CORPUS["example"], ids=lambda case: str(case["name"]))
@pytest.mark.parametrize("notation", ["gbnf", "lark"])
def test_examples(notation: str, sample: dict[str, Any], matches: Matches) -> None:
    text = (EXAMPLES / f"{sample['name']}.{notation}").read_text("utf-8")
    check_texts(Grammar.from_ebnf(text), sample, matches)


def test_every_example_has_samples() -> None:
    names = {case["name"] for case in CORPUS["example"]}
    assert {path.stem for path in EXAMPLES.iterdir()} == names


def test_notation_is_recognised(matches: Matches) -> None:
    assert matches(Grammar.from_ebnf('# start: "x"\nroot ::= "a"'), "a")
    assert matches(Grammar.from_ebnf('start: "::="  // root ::= "a"'), "::=")
    with pytest.raises(ValueError, match="syntax is auto, gbnf or lark"):
        Grammar.from_ebnf("", syntax="abnf")  # type: ignore[arg-type]


def test_another_start(matches: Matches) -> None:
    for text in ('root ::= "a"\nother ::= "b" root', 'start: "a"\nother: "b" start'):
        grammar = Grammar.from_ebnf(text, start="other")
        assert matches(grammar, "ba")
        assert not matches(grammar, "a")
    with pytest.raises(UnsatisfiableError, match="the rule other"):
        Grammar.from_ebnf('start: "a"\nother: other "b"', start="other")


def test_a_terminal_can_be_the_start(matches: Matches) -> None:
    grammar = Grammar.from_ebnf('start: A\nA: "a"+\n%ignore " "', start="A")
    assert matches(grammar, " aa ")
    assert not matches(grammar, "a a")


# --- sizes ---------------------------------------------------------------------------------------------------------


def test_tail_recursion_and_loops_keep_the_stack_flat(bytes_only: Any) -> None:
    for text in ('root ::= "a" root | "a"', 'root ::= root "a" | "a"', 'root ::= root root | "a"'):
        compiled = Grammar.from_ebnf(text).compile(bytes_only)
        assert compiled.matcher().accept_string("a" * 2000)
        assert compiled.stats()["configurations"] <= 3
        assert compiled.stats()["stacks"] <= 3


def test_levels_of_operators_do_not_multiply(matches: Matches) -> None:
    """Each level begins with the next in three ways: 3 to the power of 15 stacks, if each way were followed."""
    levels = [
        f'l{i} ::= l{i + 1} "{c}" l{i} | l{i + 1} "{c}{c}" l{i} | l{i + 1}' for i, c in enumerate("+-*/%&=<>!?:~")
    ]
    grammar = Grammar.from_ebnf("\n".join(["root ::= l0", *levels, 'l13 ::= [0-9] | "(" l0 ")"']))
    assert grammar.program.size < 20_000
    assert matches(grammar, "1+2*(3~~4)?5")
    assert not matches(grammar, "1+2*(3~~)?5")


def test_rules_that_double_stay_rules() -> None:
    lines = [f"r{i} ::= r{i + 1} r{i + 1}" for i in range(200)]
    grammar = Grammar.from_ebnf("\n".join(["root ::= r0", *lines, 'r200 ::= "a"?']))
    assert grammar.program.size < 50_000


def test_deep_groups_are_no_recursion(matches: Matches) -> None:
    depth = 20_000
    assert matches(Grammar.from_ebnf("root ::= " + "(" * depth + '"a"' + ")" * depth), "a")
    nested = '("a" | "b" root ' * 5_000 + ")" * 5_000
    assert matches(Grammar.from_ebnf("root ::= " + nested + ' | "c"'), "bca")


def test_counts_are_not_unrolled(matches: Matches) -> None:
    grammar = Grammar.from_ebnf('root ::= x{3,100000}\nx ::= "a" | "(" x ")"')
    assert grammar.program.size < 50
    assert matches(grammar, "a(a)((a))")
    assert not matches(grammar, "a(a)")


def test_a_long_chain_of_rules(matches: Matches) -> None:
    lines = [f'r{i} ::= r{i + 1} "x" | "y" r{i} ' for i in range(3000)]
    grammar = Grammar.from_ebnf("\n".join(["root ::= r0", *lines, 'r3000 ::= "a"']))
    assert matches(grammar, "a" + "x" * 3000)


def test_many_rules_that_begin_with_each_other_are_too_much() -> None:
    count = 3000
    lines = [
        f'r{i} ::= r{(i + 1) % count} "a" | r{(i * 7 + 3) % count} "b" | "c" r{i * 5 % count}' for i in range(count)
    ]
    with pytest.raises(GrammarLimitError) as caught:
        Grammar.from_ebnf("\n".join(["root ::= r0", *lines]))
    assert caught.value.hint
    assert caught.value.position == 0


@pytest.mark.parametrize(
    "text", ['root ::= "a"{2000000000}', 'root ::= ("a"{1000000}){1000000}', "start: /a{2000000000}/"]
)
def test_huge_counts_are_too_much(text: str) -> None:
    with pytest.raises(GrammarLimitError) as caught:
        Grammar.from_ebnf(text)
    assert caught.value.position is not None
