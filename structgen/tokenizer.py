"""Text to token ids and back: chat prompts on the way in, whole characters on the way out."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from structgen.chat_template import ChatTemplate
from structgen.errors import MessagesError, ModelError
from structgen.grammar import Vocabulary
from structgen.grammar.token_bytes import TokenizerFileError
from structgen.grammar.tokenizer_files import TokenizerFile, load_tokenizer

Message = Mapping[str, Any]

# Private-use characters that stand for special tokens spelled out in a message until the template is rendered.
OPEN, CLOSE = "\ue0f0", "\ue0f1"
PROTECTED = re.compile(f"{OPEN}([0-9]+){CLOSE}")


class Tokenizer:
    """One model's tokenizer. `size` is the width of the model's logits, where it exceeds the vocabulary."""

    def __init__(self, file: TokenizerFile, *, size: int | None = None) -> None:
        self.file = file
        self.size = max(file.size, size or 0)
        self._template = None if file.chat_template is None else ChatTemplate(file.chat_template)

    @classmethod
    def from_path(cls, path: str | Path, *, size: int | None = None) -> Tokenizer:
        """Read a .gguf file, a Hugging Face folder or a tokenizer.json. Raises ModelError."""
        try:
            return cls(load_tokenizer(path), size=size)
        except TokenizerFileError as error:
            raise ModelError(error.message, hint=error.hint) from None
        except OSError as error:
            raise ModelError(f"cannot read the tokenizer: {error.strerror or error}: {path}") from None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.file.eos_token_ids

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The grammar's view of the tokens; built at first use, then shared."""
        return Vocabulary(self.file.tokens, self.eos_token_ids, encode=self.file.encode, size=self.size)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text. With `special`, special tokens spelled out count as such and the model's beginning is added;
        without, the ids spell exactly this text (ValueError when the vocabulary cannot)."""
        if not special or self.file.backend is None:
            return self.file.encode(text.encode())
        return list(self.file.backend.encode(text).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, exactly; special tokens are left out and broken UTF-8 becomes U+FFFD."""
        return self.token_bytes(ids).decode("utf-8", "replace")

    def token_bytes(self, ids: Iterable[int]) -> bytes:
        tokens = self.file.tokens
        return b"".join(tokens[index] or b"" for index in ids if index < len(tokens))

    @cached_property
    def _special_names(self) -> dict[int, str]:
        return {index: text for text, index in self.file.special.items()}

    def token_name(self, token_id: int) -> tuple[str, bytes | None]:
        """How to show one token: its text and what it spells; the name and None for a special one, which spells
        nothing."""
        tokens = self.file.tokens
        spelled = tokens[token_id] if token_id < len(tokens) else None
        if spelled is None:
            return self._special_names.get(token_id, ""), None
        return spelled.decode("utf-8", "replace"), spelled

    def stream(self) -> IncrementalDecoder:
        return IncrementalDecoder(self)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, ready for the model's answer. Raises MessagesError.

        A special token that a message merely spells out (`<|im_end|>` typed by a user) is encoded as text: it cannot
        end the message or speak for someone else.
        """
        plain = [plain_message(message) for message in messages]
        if not plain:
            raise MessagesError("there are no messages")
        spelled = sorted({text for text in self.file.special for message in plain if text in message["content"]})
        if self._template is None:
            return self._encode_without_template("\n\n".join(message["content"] for message in plain), spelled)
        safe = [message | {"content": self._protect(message["content"], spelled)} for message in plain]
        rendered = self._template.render(safe, bos_token=self.file.bos_token, eos_token=self.file.eos_token)
        return self._encode_protected(rendered, spelled) if spelled else self._encode_rendered(rendered)

    def _encode_without_template(self, text: str, spelled: list[str]) -> list[int]:
        """For models that were never taught a conversation: the contents, after the model's beginning."""
        if not spelled:
            return self.encode(text)
        return self.encode("") + self._encode_protected(self._protect(text, spelled), spelled)

    def _encode_rendered(self, text: str) -> list[int]:
        if self.file.backend is None:
            return self.file.encode(text.encode())
        return list(self.file.backend.encode(text, add_special_tokens=False).ids)

    @staticmethod
    def _protect(text: str, spelled: list[str]) -> str:
        """Each special token that `text` spells, replaced by its number in `spelled` between two marks."""
        if not spelled:
            return text
        longest_first = sorted(spelled, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)))
        return pattern.sub(lambda match: f"{OPEN}{spelled.index(match[0])}{CLOSE}", text)

    def _encode_protected(self, rendered: str, spelled: list[str]) -> list[int]:
        """Special tokens of the template as such, all that lies between them as text, the marks undone."""
        special = self.file.special
        cut = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len, reverse=True))) + ")")
        ids: list[int] = []
        for piece in cut.split(rendered):
            if piece in special:
                ids.append(special[piece])
            elif piece:
                text = PROTECTED.sub(lambda match: spelled[int(match[1]) % len(spelled)], piece)
                ids += self.file.encode(text.encode())
        return ids


def plain_message(message: Message) -> dict[str, Any]:
    """A message with its content as one string; content may come as a list of text parts. Raises MessagesError."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise MessagesError(f"not a message: {message!r:.80}", hint='write {"role": "user", "content": "..."}')
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise MessagesError("a message holds a part that is not text")
        content = "".join(text for text in texts if isinstance(text, str))
    if content is not None and not isinstance(content, str):
        raise MessagesError(f"the content of a message is a {type(content).__name__}, not text")
    return dict(message) | {"content": content or ""}


class IncrementalDecoder:
    """Ids in, text out as soon as its characters are whole: what is pushed and flushed joins to the decoded text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(ids))

    def flush(self) -> str:
        """What is left when the answer was cut inside a character: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
