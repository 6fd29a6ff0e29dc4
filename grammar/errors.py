"""What can be wrong with a grammar, each with a place to look and a way out."""

from __future__ import annotations


class GrammarError(ValueError):
    """Base of every error about a grammar that a user handed in.

    Attributes:
        message: one sentence, without the pointer.
        pointer: JSON pointer into the schema ("" is the root); None for regexes, choices and EBNF.
        hint: what to change; may be empty.
        position: character offset into a regex or EBNF text; None elsewhere.
    """

    code = "invalid_grammar"

    def __init__(
        self, message: str, *, pointer: str | None = None, hint: str = "", position: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        self.hint = hint
        self.position = position

    def __str__(self) -> str:
        place = f"at {self.pointer or 'the root'}: " if self.pointer is not None else ""
        return f"{place}{self.message}"


class SchemaError(GrammarError):
    """The document is not a valid JSON Schema."""

    code = "invalid_schema"


class GrammarSyntaxError(GrammarError):
    """A regex or EBNF text does not parse; `position` says where."""

    code = "invalid_grammar"


class UnsupportedSchemaError(GrammarError):
    """A keyword that is valid but cannot be enforced: refused rather than ignored."""

    code = "unsupported_schema"


class UnsatisfiableError(GrammarError):
    """Nothing matches, or nothing that matches can be spelled with the vocabulary."""

    code = "unsatisfiable_schema"


class GrammarLimitError(GrammarError):
    """Too large: a bound on states, time or memory was reached."""

    code = "schema_too_complex"
