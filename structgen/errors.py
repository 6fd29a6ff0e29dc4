"""Everything that can go wrong outside the grammar, each with a way out. Grammar errors are re-exported.

Those are looked up when asked for: importing the grammar imports numba, which `structgen --help` need not wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structgen.grammar.errors import (
        GrammarError,
        GrammarLimitError,
        GrammarSyntaxError,
        SchemaError,
        UnsatisfiableError,
        UnsupportedSchemaError,
    )

__all__ = [
    "GenerationError",
    "GrammarError",
    "GrammarLimitError",
    "GrammarSyntaxError",
    "MessagesError",
    "ModelError",
    "OutputError",
    "OutputTypeError",
    "SchemaError",
    "StructgenError",
    "UnsatisfiableError",
    "UnsupportedSchemaError",
]


class StructgenError(Exception):
    """Base of our own errors: `message` is one sentence, `hint` says what to do (may be empty)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ModelError(StructgenError):
    """The model cannot be found, fetched or read."""


class GenerationError(StructgenError, RuntimeError):
    """The engine gave up on this request; others are not affected."""


class MessagesError(StructgenError, ValueError):
    """The messages are malformed, or the model's chat template refuses them."""


class OutputTypeError(StructgenError, TypeError):
    """The output type is of a kind that no schema can be made from."""


class OutputError(StructgenError, ValueError):
    """The text is complete, yet the output type's own checks (a pydantic validator) refuse it; `text` holds it."""

    def __init__(self, message: str, *, text: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.text = text


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'structgen.errors' has no attribute {name!r}")
    from structgen.grammar import errors as grammar_errors

    return getattr(grammar_errors, name)
