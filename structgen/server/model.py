"""What the server needs of a model: `structgen.LLM` fits, and so does a small fake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from structgen.token_stream import EngineLike


class DecoderLike(Protocol):
    """Token ids -> text, never half a character."""

    def push(self, ids: Iterable[int], /) -> str: ...

    def flush(self) -> str: ...


class TokenizerLike(Protocol):
    """What is used of `structgen.tokenizer.Tokenizer`."""

    @property
    def vocabulary(self) -> Any: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], /) -> list[int]: ...

    def stream(self) -> DecoderLike: ...


class ModelLike(Protocol):
    """What is used of `structgen.LLM`. Reading `engine` may load the weights."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> TokenizerLike: ...

    @property
    def engine(self) -> EngineLike: ...
