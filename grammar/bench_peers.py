"""One interface to several constrained-decoding libraries, for benchmarks: structgen and its peers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from structgen.grammar.errors import GrammarError
from structgen.grammar.grammar import Grammar
from structgen.grammar.matcher import Matcher
from structgen.grammar.tables import Array
from structgen.grammar.vocabulary import Vocabulary


class Refused(Exception):
    """The engine does not take the schema."""


class Session(ABC):
    """One output being written."""

    @abstractmethod
    def fill(self, row: Array) -> None: ...

    @abstractmethod
    def accept(self, token: int) -> bool: ...

    @abstractmethod
    def is_complete(self) -> bool: ...


class Peer(ABC):
    name = ""

    @abstractmethod
    def compile(self, schema: Any) -> Any:
        """A compiled grammar.

        Raises:
            Refused: the engine says no.
        """

    @abstractmethod
    def session(self, compiled: Any) -> Session: ...


class _StructgenSession(Session):
    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.fill = matcher.fill_mask  # type: ignore[method-assign]
        self.accept = matcher.accept  # type: ignore[method-assign, assignment]

    def fill(self, row: Array) -> None:
        self._matcher.fill_mask(row)

    def accept(self, token: int) -> bool:
        return self._matcher.accept(token)

    def is_complete(self) -> bool:
        return self._matcher.is_complete


class Structgen(Peer):
    name = "structgen"

    def __init__(self, vocabulary: Vocabulary, **options: Any) -> None:
        self.vocabulary, self.options = vocabulary, options

    def compile(self, schema: Any) -> Any:
        try:
            return Grammar.from_json_schema(schema, **self.options).compile(self.vocabulary)
        except GrammarError as error:
            raise Refused(str(error)) from error

    def session(self, compiled: Any) -> Session:
        return _StructgenSession(compiled.matcher())


class _LLGuidanceSession(Session):
    def __init__(self, matcher: Any) -> None:
        import llguidance.numpy

        self._matcher = matcher
        self._fill = llguidance.numpy.fill_next_token_bitmask

    def fill(self, row: Array) -> None:
        self._fill(self._matcher, row.reshape(1, -1), 0)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def is_complete(self) -> bool:
        return bool(self._matcher.is_accepting())


class LLGuidance(Peer):
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        class Wrapped:
            eos_token_id = min(vocabulary.eos_token_ids)
            bos_token_id = None
            tokens = [token or b"\xff[%d]" % i for i, token in enumerate(vocabulary.tokens)]  # noqa: RUF012
            special_token_ids = [i for i, token in enumerate(vocabulary.tokens) if token is None]  # noqa: RUF012

            def __call__(self, text: bytes) -> list[int]:
                return vocabulary.encode(text)

        self._module = llguidance
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapped()))

    def compile(self, schema: Any) -> Any:
        try:
            grammar = self._module.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        except (ValueError, RuntimeError) as error:
            raise Refused(str(error)) from error
        matcher = self._module.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return matcher

    def session(self, compiled: Any) -> Session:
        return _LLGuidanceSession(compiled.deep_copy())


class _XGrammarSession(Session):
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, row: Array) -> None:
        self._matcher.fill_next_token_bitmask(row.reshape(1, -1), 0)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())


class XGrammar(Peer):
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._module = xgrammar
        info = xgrammar.TokenizerInfo(
            [token or b"" for token in vocabulary.tokens],
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=sorted(vocabulary.eos_token_ids),
        )
        # One schema is compiled once here, so a cache between schemas would only hold memory.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: Any) -> Any:
        try:
            return self._compiler.compile_json_schema(json.dumps(schema))
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(str(error)) from error

    def session(self, compiled: Any) -> Session:
        return _XGrammarSession(self._module.GrammarMatcher(compiled, terminate_without_stop_token=False))


def make_peer(name: str, vocabulary: Vocabulary) -> Peer:
    """An engine by name.

    Raises:
        ImportError: the peer is not installed. ValueError: the name is unknown.
    """
    kinds: dict[str, Callable[[Vocabulary], Peer]] = {
        "structgen": Structgen,
        "llguidance": LLGuidance,
        "xgrammar": XGrammar,
    }
    if name not in kinds:
        raise ValueError(f"unknown engine {name!r}: choose from {', '.join(kinds)}")
    return kinds[name](vocabulary)


def new_row(vocabulary: Vocabulary) -> Array:
    """int32[mask_words]; the peers want the same layout."""
    return np.zeros(vocabulary.mask_words, np.int32)
