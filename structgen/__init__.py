"""structgen: output that always matches the schema.

Names are imported when they are first used, so that `import structgen` (and `structgen --help`) costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structgen.constraint import Choice, Regex
    from structgen.engine import AdapterError, BudgetError, SamplingParams
    from structgen.errors import (
        GenerationError,
        GrammarError,
        MessagesError,
        ModelError,
        OutputError,
        OutputTypeError,
        StructgenError,
    )
    from structgen.grammar import Grammar, Vocabulary
    from structgen.llm import LLM
    from structgen.logprobs import Logprob
    from structgen.result import Result
    from structgen.validate import ValidationIssue, Validator

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AdapterError",
    "BudgetError",
    "Choice",
    "GenerationError",
    "Grammar",
    "GrammarError",
    "Logprob",
    "MessagesError",
    "ModelError",
    "OutputError",
    "OutputTypeError",
    "Regex",
    "Result",
    "SamplingParams",
    "StructgenError",
    "ValidationIssue",
    "Validator",
    "Vocabulary",
    "__version__",
]

_HOME = {
    "constraint": ("Choice", "Regex"),
    "engine": ("AdapterError", "BudgetError", "SamplingParams"),
    "errors": (
        "GenerationError",
        "GrammarError",
        "MessagesError",
        "ModelError",
        "OutputError",
        "OutputTypeError",
        "StructgenError",
    ),
    "grammar": ("Grammar", "Vocabulary"),
    "llm": ("LLM",),
    "logprobs": ("Logprob",),
    "result": ("Result",),
    "validate": ("ValidationIssue", "Validator"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'structgen' has no attribute {name!r}")
    value = getattr(import_module(f"structgen.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
