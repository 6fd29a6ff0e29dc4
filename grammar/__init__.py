"""Grammars to token masks: schemas, regexes and choices, enforced token by token. Needs no torch."""

from structgen.grammar.compiler import CompiledGrammar, fill_masks
from structgen.grammar.errors import (
    GrammarError,
    GrammarLimitError,
    GrammarSyntaxError,
    SchemaError,
    UnsatisfiableError,
    UnsupportedSchemaError,
)
from structgen.grammar.grammar import Grammar
from structgen.grammar.json_schema.report import Finding, Report, report_schema
from structgen.grammar.matcher import Matcher
from structgen.grammar.vocabulary import Vocabulary

__all__ = [
    "CompiledGrammar",
    "Finding",
    "Grammar",
    "GrammarError",
    "GrammarLimitError",
    "GrammarSyntaxError",
    "Matcher",
    "Report",
    "SchemaError",
    "UnsatisfiableError",
    "UnsupportedSchemaError",
    "Vocabulary",
    "fill_masks",
    "report_schema",
]
