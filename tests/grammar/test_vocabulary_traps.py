"""What real vocabularies hold that a grammar must not stumble over: one test each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from structgen.grammar import Grammar, Vocabulary
from structgen.grammar.token_bytes import BYTE_OF_CHARACTER
from structgen.grammar.tokenizer_files import load_tokenizer

Allowed = Callable[..., set[int]]
BYTES: list[bytes | None] = [bytes((byte,)) for byte in range(256)]
CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def byte_level(*added: AddedToken, special: tuple[str, ...] = ("<eos>",)) -> Tokenizer:
    vocabulary = {CHARACTER_OF_BYTE[byte]: byte for byte in range(256)} | {"Ġa": 256, "Ã©": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "a"), ("Ã", "©")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(added))
    return tokenizer


def accepted(grammar: Grammar, vocabulary: Vocabulary, ids: list[int]) -> bool:
    matcher = grammar.compile(vocabulary).matcher()
    return all(matcher.accept(token) for token in ids) and matcher.is_complete


def test_byte_level_spelling_is_undone() -> None:
    vocabulary = Vocabulary.from_tokenizer(byte_level())
    assert vocabulary.tokens[256:258] == (b" a", "é".encode())
    assert accepted(Grammar.from_choices([" aé\n"]), vocabulary, [256, 257, 10])


def test_space_marks_and_byte_tokens_are_undone() -> None:
    pieces = ["<unk>", "<0x0A>", "▁", "▁a", "<0xC3>", "<0xA9>"]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.tokens == (None, b"\n", b" ", b" a", b"\xc3", b"\xa9")
    assert accepted(Grammar.from_choices([" a\né"]), vocabulary, [3, 1, 4, 5])


@pytest.mark.parametrize("options", [{"lstrip": True}, {"rstrip": True}, {"normalized": True}, {"single_word": True}])
def test_added_tokens_take_nothing_along(options: dict[str, bool]) -> None:
    file = load_tokenizer(byte_level(AddedToken("<think>", **options)))
    text = b"b <think> b"
    ids = file.encode(text)
    assert b"".join(file.tokens[index] or b"?" for index in ids) == text
    assert file.tokens.index(b"<think>") in ids
    assert file.tokens.count(b"<think>") == 1


def test_special_tokens_are_never_allowed_even_where_their_text_fits(allowed: Allowed) -> None:
    vocabulary = Vocabulary.from_tokenizer(byte_level())
    special = vocabulary.tokens.index(None)
    matcher = Grammar.from_choices(["<eos>"]).compile(vocabulary).matcher()
    assert allowed(matcher) == {ord("<")}
    assert not matcher.accept(special)


def test_duplicate_byte_strings_are_all_allowed(allowed: Allowed) -> None:
    vocabulary = Vocabulary([*BYTES, b"ab", b"ab", b"a", None], [259])
    matcher = Grammar.from_choices(["ab"]).compile(vocabulary).matcher()
    assert allowed(matcher) == {ord("a"), 256, 257, 258}
    assert matcher.accept(257)
    assert matcher.is_complete


def test_empty_tokens_are_never_allowed(allowed: Allowed) -> None:
    vocabulary = Vocabulary([*BYTES, b"", None], [257])
    for grammar in (Grammar.from_choices(["a"]), Grammar.from_regex("a*"), Grammar.any_json()):
        matcher = grammar.compile(vocabulary).matcher()
        assert 256 not in allowed(matcher)
        assert not matcher.accept(256)


def test_each_of_several_ends_ends(allowed: Allowed) -> None:
    vocabulary = Vocabulary([*BYTES, None, b"a", None], [256, 257, 258])
    for end in (256, 257, 258):
        matcher = Grammar.from_regex("a?").compile(vocabulary).matcher()
        assert allowed(matcher) == {ord("a"), 256, 257, 258}
        assert matcher.accept(end)
        assert matcher.is_terminated


def test_an_end_with_bytes_does_not_spell_them(allowed: Allowed) -> None:
    vocabulary = Vocabulary([*BYTES, b"ab"], [256])
    matcher = Grammar.from_choices(["ab"]).compile(vocabulary).matcher()
    assert allowed(matcher) == {ord("a")}


@pytest.mark.parametrize("size", [257, 288, 289, 1000])
def test_padding_is_never_allowed(size: int) -> None:
    vocabulary = Vocabulary([*BYTES, None], [256], size=size)
    row = np.full(vocabulary.mask_words, -1, np.int32)
    matcher = Grammar.from_regex(r"[\s\S]*").compile(vocabulary).matcher()
    matcher.fill_mask(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert len(bits) >= size
    assert not bits[257:].any()
    assert not matcher.accept(size - 1 if size > 257 else 300)
    assert not matcher.accept(size + 5)


def test_an_end_may_lie_in_the_padding() -> None:
    vocabulary = Vocabulary(BYTES, [300], size=320)
    assert accepted(Grammar.from_choices(["a"]), vocabulary, [97])
    matcher = Grammar.from_regex("a?").compile(vocabulary).matcher()
    assert matcher.accept(300)


def test_no_space_is_put_in_front() -> None:
    file = load_tokenizer(byte_level())
    assert file.encode(b"a") == [ord("a")]
    assert file.encode(b" a") == [256]
    vocabulary = Vocabulary.from_tokenizer(byte_level())
    matcher = Grammar.from_choices(["a"]).compile(vocabulary).matcher()
    assert matcher.forced_tokens() == [ord("a")]


@pytest.mark.parametrize(
    ("text", "cut"), [("é", 1), ("漢", 1), ("漢", 2), ("😀", 1), ("😀", 3), ("é\u00ff", 1), ("a漢b", 2)]
)
def test_tokens_that_are_no_text_alone(text: str, cut: int, allowed: Allowed) -> None:
    data = text.encode()
    vocabulary = Vocabulary([*BYTES, data[:cut], data[cut:], b"\xff\xfe", data[cut:] + b"\x80", None], [260])
    grammars: list[Any] = [
        Grammar.from_choices([text]),
        Grammar.from_regex(f"[{text}]{{{len(text)}}}"),
        Grammar.from_regex("[^x]+"),
    ]
    for grammar in grammars:
        matcher = grammar.compile(vocabulary).matcher()
        assert 256 in allowed(matcher)
        assert 258 not in allowed(matcher)
        assert matcher.accept(256)
        assert data[:cut].decode("utf-8", "ignore") == data[:cut].decode("utf-8", "replace") or not matcher.is_complete
        assert 257 in allowed(matcher)
        assert 259 not in allowed(matcher)
        assert matcher.accept(257)
        assert matcher.is_complete


def test_bytes_that_no_token_spells_are_never_needed(allowed: Allowed) -> None:
    without = [token for token in BYTES if token != b"\xa9"]
    vocabulary = Vocabulary([*without, None], [255])
    matcher = Grammar.from_choices(["é", "ê"]).compile(vocabulary).matcher()  # C3 A9 and C3 AA
    assert matcher.accept(without.index(b"\xc3"))
    assert allowed(matcher) == {without.index(b"\xaa")}


def test_the_width_and_the_ends_come_from_the_files_beside(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 320, "eos_token_id": [258, 319]}')
    vocabulary = Vocabulary.from_tokenizer(tmp_path)
    assert vocabulary.size == 320
    assert vocabulary.mask_words == 10
    assert vocabulary.eos_token_ids == {258, 319}
    assert Vocabulary.from_tokenizer(tmp_path, size=400).size == 400
