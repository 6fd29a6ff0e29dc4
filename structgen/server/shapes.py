"""Parts of an answer that whole and streamed ones share, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from structgen.logprobs import TokenNames, named
from structgen.server.generation import Answer


class LogprobsTeller:
    """`choices[].logprobs`: null unless they were asked for."""

    def __init__(self, names: TokenNames | None) -> None:
        self._names = names

    def __call__(self, told: Iterable[Any]) -> dict[str, Any] | None:
        if self._names is None:
            return None
        return {"content": [each.as_dict() for each in named(told, self._names)], "refusal": None}


def stop_reason(answer: Answer) -> dict[str, Any]:
    """vLLM's `choices[].stop_reason` for an answer that a stop string ended: OpenAI's shape does not tell that one from
    an answer that ended by itself. Nothing for others."""
    return {} if answer.cut is None else {"stop_reason": answer.cut}
