"""A model's own chat template: a Jinja text that came with the weights, so it runs in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from structgen.errors import MessagesError, ModelError


class ChatTemplate:
    """Compiled once. Raises ModelError when the template does not parse."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"the model's chat template does not parse: {error}") from None

    def render(self, messages: Sequence[dict[str, Any]], *, bos_token: str | None, eos_token: str | None) -> str:
        """The conversation as text, ending where the model's answer begins. Raises MessagesError."""
        try:
            return self._template.render(
                messages=messages,
                bos_token=bos_token or "",
                eos_token=eos_token or "",
                add_generation_prompt=True,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise MessagesError(f"the model's chat template refuses the messages: {error}") from None


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes < and > for HTML, which a model should not see.
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training: here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
