"""The last look at a finished output: by the validator, which knows nothing of the grammar that made it."""

from __future__ import annotations

from collections.abc import Callable

from structgen.server.constraints import ConstraintSpec
from structgen.validate import Validator
from structgen.validation.patterns import PatternError, compile_pattern


def output_check(spec: ConstraintSpec) -> Callable[[str], str | None]:
    """A function from finished text to the reason why it breaks the constraint (None: it does not).

    Raises:
        SchemaError, GrammarLimitError: the validator cannot read the schema.
    """
    if spec.kind == "json":
        validator = Validator(spec.payload)
        return lambda text: next((str(issue) for issue in validator.errors_in_text(text)), None)
    if spec.kind == "choice":
        choices = frozenset(spec.payload)
        return lambda text: None if text in choices else "the text is none of the choices"
    return _pattern_check(spec.payload)


def _pattern_check(pattern: str) -> Callable[[str], str | None]:
    try:
        whole = compile_pattern(f"^(?:{pattern.replace('(?P<', '(?<')})$")
    except PatternError:  # Python's syntax beyond named groups, which the grammar understands and ECMA-262 does not
        return lambda text: None
    return lambda text: None if whole.find(text) is not None else "the text does not match the pattern"
