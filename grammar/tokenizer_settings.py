"""What lies beside a tokenizer: chat template, special tokens, the ids that end an answer, the width of the logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from structgen.grammar.token_bytes import TokenizerFileError

# Special tokens that end an answer in the families we know, whether or not the files name them as such.
CHATML_ENDS = ("<|im_end|>", "<|endoftext|>", "<|end|>", "<|EOT|>")
LLAMA_ENDS = ("</s>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<eos>", "<end_of_turn>")
END_TOKENS = frozenset({*CHATML_ENDS, *LLAMA_ENDS})


def read_json_text(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file, and the JSON object in it. Raises TokenizerFileError."""
    try:
        text = path.read_text("utf-8")
        document = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TokenizerFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise TokenizerFileError(f"{path} does not hold a JSON object")
    return text, document


def read_json(path: Path) -> dict[str, Any]:
    return read_json_text(path)[1]


def settings_of_folder(folder: Path) -> dict[str, Any]:
    """What the files beside a tokenizer file say."""
    settings: dict[str, Any] = {"eos_token_ids": []}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            document = read_json(folder / name)
            ends = document.get("eos_token_id")
            settings["eos_token_ids"] += ends if isinstance(ends, list) else [] if ends is None else [ends]
            settings |= {key: document[key] for key in ("vocab_size",) if name == "config.json" and key in document}
            if name == "tokenizer_config.json":
                settings |= {key: document.get(key) for key in ("chat_template", "bos_token", "eos_token")}
    template = folder / "chat_template.jinja"
    if template.is_file():
        settings["chat_template"] = template.read_text("utf-8")
    return settings


def settings_of_object(tokenizer: Any) -> dict[str, Any]:
    ends = getattr(tokenizer, "eos_token_id", None)
    names = ("chat_template", "bos_token", "eos_token")
    return {name: getattr(tokenizer, name, None) for name in names} | {
        "eos_token_ids": ends if isinstance(ends, list) else [] if ends is None else [ends]
    }


def added_tokens_of_folder(folder: Path) -> dict[int, tuple[str, bool]]:
    """Tokens that a folder adds to its SentencePiece file: id -> (text, whether it is special)."""
    added: dict[int, tuple[str, bool]] = {}
    if (folder / "added_tokens.json").is_file():
        for text, index in read_json(folder / "added_tokens.json").items():
            # Older folders list the texts only; what looks like markup is special.
            added[int(index)] = (text, text[:1] + text[-1:] in ("<>", "[]"))
    if (folder / "tokenizer_config.json").is_file():
        entries = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
        for key, entry in entries.items():
            added[int(key)] = (str(entry.get("content")), bool(entry.get("special")))
    return added


def content(token: Any) -> str | None:
    """Special tokens are written as a string or as an object with `content`."""
    return token.get("content") if isinstance(token, dict) else None if token is None else str(token)


def default_template(template: Any) -> str | None:
    """A chat template, or the one named `default` of several."""
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def ends_of(ids: set[int], special: dict[str, int], eos: str | None) -> frozenset[int]:
    """The ids that end an answer: those named, and special tokens known to do so."""
    return frozenset(ids | {index for text, index in special.items() if text in END_TOKENS or text == eos})
