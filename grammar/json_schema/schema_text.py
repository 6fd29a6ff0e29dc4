"""A schema as JSON text."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from structgen.grammar.errors import GrammarError, GrammarLimitError, SchemaError


def parse_schema(text: str) -> Any:
    """JSON text with exact numbers.

    Raises:
        SchemaError: it is not JSON.
    """

    def refuse(name: str) -> Any:
        raise SchemaError(f"{name} is no JSON number", pointer="")

    try:
        return json.loads(text, parse_float=Decimal, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise SchemaError(
            f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}", pointer="", position=error.pos
        ) from error
    except GrammarError:
        raise
    except ValueError as error:  # Python's limit for the digits of an integer
        raise GrammarLimitError("a number of too many digits", pointer="", hint="use a smaller number") from error
    except RecursionError:
        raise GrammarLimitError("the schema is nested too deeply", pointer="") from None
