"""A vocabulary of Llama 3's size for machines without its tokenizer: bytes, pieces of JSON, and made-up words."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path

from structgen.engine.bench_schemas import EXTRACTIONS
from structgen.grammar import Vocabulary

SIZE = 128_256
SPECIAL = 256  # at the end; the first of them ends a text
_OPENERS = ('"', ' "', '{"', '["', ',"', ', "', '":"', '": "', "\n", "\n  ", "\n    ")
_CLOSERS = ('"', '",', '":', '": ', '"}', '"]', '"},', '"}}', "}", "},", "]", "],", "]}", "}}", "}]", ",", ":", ": ")
_SYLLABLES = [a + b for a, b in product("bcdfghklmnprstvwz", "aeiou")]


def made_up_vocabulary() -> Vocabulary:
    """Deterministic. Text is spelled by the longest token that fits."""
    pieces = [bytes((byte,)) for byte in range(256)]
    pieces += [one.encode() for one in _json_pieces()]
    known, rng = set(pieces), random.Random(0)
    while len(pieces) < SIZE - SPECIAL:
        word = "".join(rng.choices(_SYLLABLES, k=rng.choice((1, 2, 2, 3, 3, 4))))
        styled = rng.choice((" {}", "{}", " {}", "{}s", ' {}"', "{}")).format(rng.choice((word, word, word.title())))
        if (piece := styled.encode()) not in known:
            known.add(piece)
            pieces.append(piece)
    return Vocabulary([*pieces, *[None] * SPECIAL], [SIZE - SPECIAL], size=SIZE)


def read_vocabulary(path: Path | None) -> Vocabulary:
    """A tokenizer's vocabulary, widened to Llama 3's logits where it is smaller; the made-up one without a path."""
    if path is None:
        return made_up_vocabulary()
    return Vocabulary.from_tokenizer(path, size=SIZE)


def _json_pieces() -> list[str]:
    """What a byte-pair encoder learns from JSON: punctuation in runs, short numbers, and words with their quotes."""
    pieces = [
        *_OPENERS,
        *_CLOSERS,
        "true",
        "false",
        "null",
        *(f"{number:0{width}d}" for width in (2, 3) for number in range(10**width)),
    ]
    words = sorted({word for each in EXTRACTIONS for word in _words(each.schema)})
    for word in words:
        pieces += [word, " " + word, '"' + word, "_" + word, word + '"', word + '":']
    return list(dict.fromkeys(pieces))


def _words(schema: object) -> set[str]:
    letters = "".join(char if char.isalpha() else " " for char in json.dumps(schema))
    return {word for word in letters.split() if len(word) > 1}
