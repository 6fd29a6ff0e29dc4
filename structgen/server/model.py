"""What the server needs of a model: `structgen.LLM` fits, and so does a small fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from structgen.answer_text import DecoderLike
from structgen.token_stream import EngineLike


class TokenizerLike(Protocol):
    """What is used of `structgen.tokenizer.Tokenizer`."""

    @property
    def vocabulary(self) -> Any: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], /) -> list[int]: ...

    def stream(self) -> DecoderLike: ...

    def token_name(self, token_id: int, /) -> tuple[str, bytes | None]: ...


class ModelLike(Protocol):
    """What is used of `structgen.LLM`. Reading `engine` may load the weights."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> TokenizerLike: ...

    @property
    def engine(self) -> EngineLike: ...
