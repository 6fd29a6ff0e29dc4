"""What the tests of this folder share: the corpus of cases, and the vocabularies it runs on.

A test that takes `case` runs on every case of `tests/data/grammar_cases.toml`, one that takes `vocabulary` on every
vocabulary. A vocabulary that is not on this machine is a skip with its reason.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.grammar import Grammar, Matcher, Vocabulary
from structgen.models import DEFAULT_MODEL, KNOWN, is_present

CORPUS = Path(__file__).parents[1] / "data" / "grammar_cases.toml"

# As a byte-pair encoder would merge JSON, and what real vocabularies hold beside that.
MERGED = (
    *('"a', '":', '": ', '",', ', "', '{"', '"}', "[]", "{}", "[[", "]]", "],", "},", "}}", '"]', '":"', '","', "\n  "),
    *("  ", "    ", "12", "123", "00", "-1", ".5", "e+", "1e", "ab", "abc", "aa", "aaaa", "bc", " the", "tr", "true"),
    *(
        "fals",
        "alse",
        "nul",
        "null",
        "name",
        "value",
        "20",
        "2024",
        "-0",
        "01",
        "T1",
        "\\n",
        "\\u",
        '\\"',
        "u00",
        "\\\\",
    ),
    *("é", "漢字", "😀", "né", "ж", "a😀b", '"é', 'é"', "::", "@", ".com", "http", "://", "xyz", "foo", "bar", "key"),
    # Out of a string in one token, also right behind an escape.
    *('a"', 'ab",', 'x"}', 'é",', 'a":', 'b":"', 'aa"]', '"",', '\\"",', '\\""', '\\n"', '\\n":', "a\\", '\\\\"'),
    *('\\u0061"', '\\"}', '\\":', '","a":', '":1,"', '":null}', "ab\\n", '\\tb"', '"},"', '"]}', '"a"', '\\"a"'),
)
BROKEN = (
    b"\xc3",
    b'\xa9"',
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe6\xbc",
    b"\x80\x80",
    b"\xff\xfe",
    b"a\xc3",
    b"\xa9a",
    b"\xed\xa0",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nojit: quick enough to run with NUMBA_DISABLE_JIT=1 too")


def byte_vocabulary() -> Vocabulary:
    """The 256 bytes, and EOS."""
    return Vocabulary([*(bytes((byte,)) for byte in range(256)), None], [256])


def merged_vocabulary() -> Vocabulary:
    """All bytes, merges, broken UTF-8, duplicates, empty and missing tokens, two EOS ids, and padded logits."""
    tokens: list[bytes | None] = [None, b"", *(one.encode() for one in MERGED), *BROKEN]
    tokens += [bytes((byte,)) for byte in range(255, -1, -1)]
    tokens += [b"a", b'"', b"abc", b"", None, b"</s>", b"</s>"]
    return Vocabulary(tokens, [0, len(tokens) - 1], size=len(tokens) + 37)


def smollm2_vocabulary() -> Vocabulary:
    if not is_present(KNOWN[DEFAULT_MODEL]):
        pytest.skip("the default model is not in the cache: python -m structgen models pull")
    from structgen.models import resolve

    return Vocabulary.from_tokenizer(resolve(None, progress=False, offline=True).path)


def llama3_vocabulary() -> Vocabulary:
    """Llama 3's ranks, from the file that the PyPI package llama-models carries."""
    import base64
    from importlib.util import find_spec

    spec = find_spec("llama_models")
    if spec is None or spec.origin is None:
        pytest.skip("llama-models is not installed: its Llama 3 vocabulary is not tested")
    lines = (Path(spec.origin).parent / "llama3" / "tokenizer.model").read_text().splitlines()
    tokens: list[bytes | None] = [base64.b64decode(line.split()[0]) for line in lines]
    return Vocabulary([*tokens, *[None] * 256], [len(tokens) + 1, len(tokens) + 9])


VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    "bytes": byte_vocabulary,
    "merged": merged_vocabulary,
    "smollm2": smollm2_vocabulary,
    "llama3": llama3_vocabulary,
}


@cache
def vocabulary_named(name: str) -> Vocabulary:
    return VOCABULARIES[name]()


@dataclass(frozen=True)
class Case:
    """A grammar, what it accepts and what it rejects."""

    name: str
    regex: str | None = None
    choices: list[str] | None = None
    schema: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    accept: list[str] = field(default_factory=list)
    reject: list[str] = field(default_factory=list)
    accept_hex: list[str] = field(default_factory=list)
    reject_hex: list[str] = field(default_factory=list)
    error: str | None = None  # the code of the error that it is refused with
    pointer: str | None = None

    @cached_property
    def grammar(self) -> Grammar:
        if self.regex is not None:
            return Grammar.from_regex(self.regex)
        if self.choices is not None:
            return Grammar.from_choices(self.choices)
        return Grammar.from_json_schema(self.schema, **self.options)

    @property
    def accepted(self) -> list[bytes]:
        return [text.encode() for text in self.accept] + [bytes.fromhex(text) for text in self.accept_hex]

    @property
    def rejected(self) -> list[bytes]:
        return [text.encode() for text in self.reject] + [bytes.fromhex(text) for text in self.reject_hex]


def _cases() -> list[Case]:
    return [Case(**one) for one in tomllib.loads(CORPUS.read_text())["case"]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames or "refused_case" in metafunc.fixturenames:
        name = "case" if "case" in metafunc.fixturenames else "refused_case"
        chosen = [one for one in _cases() if (one.error is None) == (name == "case")]
        metafunc.parametrize(name, [pytest.param(one, id=one.name) for one in chosen])


@pytest.fixture
def all_cases() -> list[Case]:
    """The cases that compile."""
    return [one for one in _cases() if one.error is None]


@pytest.fixture(params=VOCABULARIES)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return vocabulary_named(request.param)


@pytest.fixture(params=["bytes", "merged"])
def small_vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return vocabulary_named(request.param)


@pytest.fixture(params=["smollm2", "llama3"])
def large_vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return vocabulary_named(request.param)


@pytest.fixture
def bytes_only() -> Vocabulary:
    return vocabulary_named("bytes")


@pytest.fixture
def merged() -> Vocabulary:
    return vocabulary_named("merged")


@pytest.fixture
def smollm2() -> Vocabulary:
    return vocabulary_named("smollm2")


@pytest.fixture
def allowed() -> Callable[..., set[int]]:
    """The token ids of a matcher's mask."""

    def tokens_of(matcher: Matcher, budget: int | None = None) -> set[int]:
        row = np.full(matcher.compiled.vocabulary.mask_words, 0x55555555, np.int32)
        matcher.fill_mask(row, budget)
        return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())

    return tokens_of


@pytest.fixture
def matches(bytes_only: Vocabulary) -> Callable[[Grammar, str | bytes], bool]:
    """Whether a grammar accepts a text as a whole, read by bytes."""

    def whole(grammar: Grammar, text: str | bytes) -> bool:
        matcher = grammar.compile(bytes_only).matcher()
        return matcher.accept_string(text) and matcher.is_complete

    return whole


@pytest.fixture
def accepts(bytes_only: Vocabulary) -> Callable[..., bool]:
    """Whether a schema allows a value, written compactly (or a text as it is)."""

    def valid(schema: Any, value: Any, *, text: bool = False, **options: Any) -> bool:
        matcher = Grammar.from_json_schema(schema, **options).compile(bytes_only).matcher()
        written = value if text else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return matcher.accept_string(written) and matcher.is_complete

    return valid
