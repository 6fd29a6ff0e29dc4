"""What an output must look like, before any tokenizer is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from structgen.grammar.compiler import CompiledGrammar
from structgen.grammar.errors import SchemaError, UnsatisfiableError
from structgen.grammar.program import Program, ProgramBuilder
from structgen.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from structgen.grammar.json_schema.report import Report
    from structgen.grammar.outlines_backend import OutlinesGrammar


class Grammar:
    """An immutable language of byte strings; make one with a `from_...` constructor.

    Attributes:
        program: its automaton.
        kind: "json_schema", "regex", "choice" or "ebnf".
        source: the pattern of a regex, the texts of choices; None for other kinds.
    """

    def __init__(
        self, program: Program, kind: str, source: str | tuple[str, ...] | None = None, schema: Any = None
    ) -> None:
        self.program = program
        self.kind = kind
        self.source = source
        self._schema = schema  # (schema, options), for the report

    def __repr__(self) -> str:
        return f"Grammar(kind={self.kind!r}, states={self.program.size})"

    @classmethod
    def from_json_schema(cls, schema: Any, **options: Any) -> Grammar:
        """The JSON texts that a schema allows.

        Args:
            schema: a dict, a bool, or the schema as JSON text.
            **options: the fields of `JsonOptions`.
        Raises:
            SchemaError, UnsupportedSchemaError, UnsatisfiableError, GrammarLimitError: each with a pointer.
        """
        from structgen.grammar.json_schema.compile import compile_schema
        from structgen.grammar.json_schema.options import JsonOptions

        return cls(compile_schema(schema, JsonOptions.of(options)), "json_schema", schema=(schema, options))

    def report(self) -> Report:
        """What becomes of every keyword of the schema: enforced, an annotation, or refused, with pointers.

        `report_schema` says the same of schemas that do not compile. Other kinds of grammars have no keywords.
        """
        from structgen.grammar.json_schema.report import Report, report_schema

        if self._schema is None:
            return Report(())
        schema, options = self._schema
        return report_schema(schema, **options)

    @classmethod
    def any_json(cls, *, root_object: bool = False, **options: Any) -> Grammar:
        """Any JSON value, or any JSON object."""
        return cls.from_json_schema({"type": "object"} if root_object else True, **options)

    @classmethod
    def from_regex(cls, pattern: str) -> Grammar:
        """All texts that match a regex as a whole: ECMA-262 syntax, and Python's named groups.

        Raises:
            GrammarSyntaxError: with the position of the fault.
        """
        from structgen.grammar.regex_program import regex_program

        return cls(regex_program(pattern), "regex", pattern)

    @classmethod
    def from_choices(cls, choices: Iterable[str]) -> Grammar:
        """Exactly one of the given texts.

        Raises:
            SchemaError: a choice is not a text. UnsatisfiableError: there are no choices.
        """
        from structgen.grammar.byte_trie import literal_alternatives

        texts = list(dict.fromkeys(choices))
        for text in texts:
            if not isinstance(text, str):
                raise SchemaError(f"choices are texts, not {type(text).__name__}", hint="convert each choice to str")
        if not texts:
            raise UnsatisfiableError("there is nothing to choose from", hint="give at least one choice")
        builder = ProgramBuilder()
        try:
            words = [(text.encode(), builder.accept) for text in texts]
        except UnicodeEncodeError as error:
            raise SchemaError("a choice has a lone surrogate", hint="use valid Unicode text") from error
        return cls(builder.finish(literal_alternatives(builder, words)), "choice", tuple(texts))

    @classmethod
    def from_ebnf(
        cls, text: str, *, syntax: Literal["auto", "gbnf", "lark"] = "auto", start: str | None = None
    ) -> Grammar:
        """The texts of a context-free grammar, left-recursive and ambiguous ones included.

        The language is one over characters: no lexer lets the longest terminal win. A text matches when it can be
        cut into terminals in any way.

        Args:
            text: GBNF as llama.cpp reads it (`root ::= "a" root | [0-9]+`), or a subset of Lark's notation
                (`start: "a" start | /[0-9]+/`; `%ignore` and `%import common.NAME` are understood).
            syntax: "auto" takes a text with a rule in `::=` for GBNF.
            start: the rule to begin with; "root" in GBNF and "start" in Lark's notation when left out.
        Raises:
            GrammarSyntaxError: with `position`, line, column and caret. UnsatisfiableError: nothing matches.
            GrammarLimitError: too large.
        """
        from structgen.grammar.ebnf.ebnf_program import ebnf_program

        return cls(ebnf_program(text, syntax, start), "ebnf")

    @overload
    def compile(self, vocabulary: Vocabulary, *, backend: Literal["structgen"] = "structgen") -> CompiledGrammar: ...

    @overload
    def compile(self, vocabulary: Vocabulary, *, backend: Literal["outlines-core"]) -> OutlinesGrammar: ...

    def compile(
        self, vocabulary: Vocabulary, *, backend: Literal["structgen", "outlines-core"] = "structgen"
    ) -> CompiledGrammar | OutlinesGrammar:
        """Bind to a tokenizer. Cheap: masks are computed when first needed, and kept.

        Args:
            backend: "outlines-core" is for comparison, with trusted regexes and choices only (see outlines_backend.py).
        Raises:
            UnsatisfiableError: nothing that matches can be spelled with this vocabulary.
        """
        if backend == "outlines-core":
            from structgen.grammar.outlines_backend import OutlinesGrammar

            return OutlinesGrammar(self, vocabulary)
        if backend != "structgen":
            raise ValueError(f'backend is "structgen" or "outlines-core", not {backend!r}')
        return CompiledGrammar(self, vocabulary)
