"""SentencePiece files: written by hand, trained by the real package, and real ones where a package carries them."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from structgen.grammar.sentencepiece_model import PieceType, SentencePieceError, read_model
from structgen.grammar.token_bytes import TokenizerFileError
from structgen.grammar.tokenizer_files import TokenizerFile, load_tokenizer

UNIGRAM, BPE = 1, 2
SPECIAL = [("<unk>", 0.0, PieceType.UNKNOWN), ("<s>", 0.0, PieceType.CONTROL), ("</s>", 0.0, PieceType.CONTROL)]
RAW = [(f"<0x{byte:02X}>", 0.0, PieceType.BYTE) for byte in range(256)]
TEXTS = [
    "",
    " ",
    "hello",
    " hello hell  he",
    "the cat sat on the mat, then the other cat sat",
    "a\u2581b",
    "<0x41><s></s>",
    "漢字 é 😀\r\n\t",
    "<tool>hello<tool>",
    "x<tool>",
]


def number(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def block(field: int, data: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(data)) + data


def setting(field: int, value: int) -> bytes:
    return number(field << 3) + number(value)


def model_bytes(
    pieces: Iterable[tuple[str, float, int]],
    *,
    kind: int = BPE,
    training: dict[int, int] | None = None,
    normaliser: dict[int, int] | None = None,
) -> bytes:
    """A ModelProto."""
    out = b"".join(
        block(1, block(1, text.encode()) + number(2 << 3 | 5) + struct.pack("<f", score) + setting(3, type_))
        for text, score, type_ in pieces
    )
    settings = {3: kind, 35: 1} | (training or {})
    out += block(2, b"".join(setting(field, value) for field, value in settings.items()))
    normal = {3: 1, 4: 0} | (normaliser or {})
    return out + block(3, b"".join(setting(field, value) for field, value in normal.items()))


def normal(*texts: str) -> list[tuple[str, float, int]]:
    """Pieces, the best first."""
    return [(text, -float(index), PieceType.NORMAL) for index, text in enumerate(texts)]


HELLO = [*SPECIAL, *RAW, *normal("he", "el", "ll", "hell", "▁hello", "hello", "▁▁", "▁", "h", "e", "l", "o")]
HELLO += [("<tool>", 0.0, PieceType.USER_DEFINED), ("unused", 0.0, PieceType.UNUSED)]


def load(path: Path, data: bytes) -> TokenizerFile:
    path.write_bytes(data)
    return load_tokenizer(path)


def ids_of(file: TokenizerFile, *texts: str) -> list[int]:
    places = {token: index for index, token in enumerate(file.tokens)}  # a piece rather than a byte
    return [places[text.encode()] for text in texts]


def spelled(file: TokenizerFile, ids: list[int]) -> bytes:
    return b"".join(file.tokens[index] or b"?" for index in ids)


@pytest.mark.parametrize("kind", [BPE, UNIGRAM])
@pytest.mark.parametrize("text", TEXTS)
def test_every_text_is_spelled_exactly(tmp_path: Path, kind: int, text: str) -> None:
    file = load(tmp_path / "tokenizer.model", model_bytes(HELLO, kind=kind))
    assert spelled(file, file.encode(text.encode())) == text.encode()


@pytest.mark.parametrize("kind", [BPE, UNIGRAM])
def test_every_byte_is_spelled_exactly(tmp_path: Path, kind: int) -> None:
    file = load(tmp_path / "tokenizer.model", model_bytes(HELLO, kind=kind))
    for data in (bytes(range(256)), *(bytes((byte,)) for byte in range(256))):
        assert spelled(file, file.encode(data)) == data


def test_bytes_of_pieces(tmp_path: Path) -> None:
    file = load(tmp_path / "tokenizer.model.v3", model_bytes(HELLO))  # known by content, not by name
    assert file.tokens[:4] == [None, None, None, b"\0"]
    assert {b" hello", b"  ", b"<tool>"} <= set(file.tokens)
    assert b"unused" not in file.tokens
    assert file.special == {"<s>": 1, "</s>": 2}
    assert (file.bos_token, file.eos_token) == ("<s>", "</s>")
    assert file.eos_token_ids == {2}
    assert file.size == len(file.tokens) == len(HELLO)


def test_bpe_joins_the_best_pair_first(tmp_path: Path) -> None:
    file = load(tmp_path / "tokenizer.model", model_bytes(HELLO))
    assert file.encode(b"hel") == ids_of(file, "he", "l")
    assert file.encode(b"hello") == ids_of(file, "hello")
    assert file.encode(b" hello") == ids_of(file, " hello")
    assert file.encode(b"ell") == ids_of(file, "el", "l")


def test_of_equal_scores_the_leftmost_pair_wins(tmp_path: Path) -> None:
    pieces = [*SPECIAL, *RAW, ("ab", -1.0, 1), ("ba", -1.0, 1), ("a", -2.0, 1), ("b", -2.0, 1)]
    file = load(tmp_path / "tokenizer.model", model_bytes(pieces))
    assert file.encode(b"aba") == ids_of(file, "ab", "a")
    assert file.encode(b"bab") == ids_of(file, "ba", "b")


def test_an_unused_piece_is_a_step_and_no_result(tmp_path: Path) -> None:
    pieces = [*SPECIAL, *RAW, ("ab", 0.0, PieceType.UNUSED), *normal("abc", "a", "b", "c")]
    file = load(tmp_path / "tokenizer.model", model_bytes(pieces))
    assert file.encode(b"abc") == ids_of(file, "abc")
    assert file.encode(b"ab") == ids_of(file, "a", "b")


def test_unigram_takes_the_best_sum(tmp_path: Path) -> None:
    pieces = [*SPECIAL, *RAW, ("ab", -3.0, 1), ("bc", -1.0, 1), ("a", -1.5, 1), ("b", -2.0, 1), ("c", -2.0, 1)]
    file = load(tmp_path / "tokenizer.model", model_bytes(pieces, kind=UNIGRAM))
    assert file.encode(b"abc") == ids_of(file, "a", "bc")  # -2.5 is better than -5
    assert file.encode(b"ab") == ids_of(file, "ab")


def test_a_user_defined_piece_is_never_part_of_another(tmp_path: Path) -> None:
    pieces = [*SPECIAL, *RAW, *normal("a<tool>", "a", "<tool>b"), ("<tool>", 0.0, PieceType.USER_DEFINED)]
    file = load(tmp_path / "tokenizer.model", model_bytes(pieces))
    assert file.encode(b"a<tool>b") == ids_of(file, "a", "<tool>", "b")


def test_prompts_get_a_beginning_and_a_space_in_front(tmp_path: Path) -> None:
    for kind in (BPE, UNIGRAM):
        backend = load(tmp_path / "tokenizer.model", model_bytes(HELLO, kind=kind)).backend
        assert backend is not None
        ids = backend.encode("hello").ids
        assert ids[-1] == [text for text, _, _ in HELLO].index("▁hello")
        assert backend.encode("a</s>", add_special_tokens=False).ids[-1] == 2


def test_a_folder_adds_tokens(tmp_path: Path) -> None:
    (tmp_path / "added_tokens.json").write_text('{"<|im_end|>": 300}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"2": {"content": "</s>", "special": true},'
        ' "302": {"content": "a b", "special": false}}, "chat_template": "t"}'
    )
    (tmp_path / "config.json").write_text('{"vocab_size": 320}')
    (tmp_path / "tokenizer.model").write_bytes(model_bytes(HELLO))
    file = load_tokenizer(tmp_path)
    assert file.special == {"<s>": 1, "</s>": 2, "<|im_end|>": 300}
    assert file.eos_token_ids == {2, 300}
    assert file.tokens[302] == b"a b"
    assert file.encode(b"xa bx")[1] == 302
    assert (file.size, file.chat_template) == (320, "t")


def test_spaces_may_be_written_as_they_are(tmp_path: Path) -> None:
    file = load(tmp_path / "m.model", model_bytes([*SPECIAL, *RAW, *normal(" a", " ", "▁")], normaliser={5: 0}))
    assert file.encode(" a▁".encode()) == ids_of(file, " a", "▁")


@pytest.mark.parametrize("kind", [3, 4])
def test_word_and_character_models_are_refused(tmp_path: Path, kind: int) -> None:
    with pytest.raises(TokenizerFileError, match="not supported"):
        load(tmp_path / "m.model", model_bytes(HELLO, kind=kind))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = model_bytes(HELLO)
    refused = 0
    for data in [b"", b"\n", b"\xff" * 40, *(whole[:size] for size in range(1, len(whole), 97))]:
        try:
            read_model(data)
        except SentencePieceError:
            refused += 1
    assert refused > 30  # a few cuts fall between two fields, where nothing can be noticed
    with pytest.raises(TokenizerFileError, match="damaged"):
        load(tmp_path / "tokenizer.model", whole[:500])


# -- the real thing -------------------------------------------------------------------------------------------------


def trained(**options: Any) -> tuple[Any, bytes]:
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is the reference")
    rng = random.Random(5)
    words = ["the", "cat", "sat", "mat", "other", "on", "there", "hello", "été", "漢字", "aaaa", "ababab", "<tool>"]
    lines = [" ".join(rng.choices(words, k=12)) for _ in range(300)]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, minloglevel=2, num_threads=1, hard_vocab_limit=False, **options
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    return processor, out.getvalue()


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("user", [[], ["<tool>", "th", "▁▁"]])
def test_encode_equals_sentencepiece(tmp_path: Path, model_type: str, user: list[str]) -> None:
    theirs, data = trained(
        model_type=model_type,
        vocab_size=340,
        byte_fallback=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=user,
    )
    file = load(tmp_path / "tokenizer.model", data)
    rng = random.Random(3)
    random_texts = ["".join(rng.choices("thecasmo  é漢<tl>ab\n", k=rng.randrange(60))) for _ in range(300)]
    for text in [*(one for one in TEXTS if "\u2581" not in one), *random_texts]:
        assert file.encode(text.encode()) == theirs.encode(text), text


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_prompts_equal_sentencepiece(tmp_path: Path, model_type: str) -> None:
    theirs, data = trained(model_type=model_type, vocab_size=340, byte_fallback=True, character_coverage=1.0)
    backend = load(tmp_path / "tokenizer.model", data).backend
    assert backend is not None
    for text in ("the cat sat", "  the   other  mat ", "ﬁve ① été"):  # the character map is NFKC's
        assert backend.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


def _real_files() -> list[Path]:
    spec = find_spec("mistral_common")
    return sorted((Path(spec.origin).parent / "data").glob("*.model*")) if spec is not None and spec.origin else []


@pytest.mark.parametrize("version", ["v1", "v3"])
def test_mistral_files_equal_sentencepiece(version: str) -> None:
    paths = [path for path in _real_files() if path.name.endswith(version)]
    if not paths:
        pytest.skip("mistral-common is not installed: its SentencePiece files are not tested")
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is the reference")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(paths[0]))
    file = load_tokenizer(paths[0])
    source = Path(__file__).read_text("utf-8").replace("\u2581", "_")
    for text in [source, *(one for one in TEXTS if "\u2581" not in one)]:
        # theirs puts a space in front
        assert file.encode((" " + text).encode()) == (theirs.encode(text) if text else ids_of(file, " ")), text
        assert spelled(file, file.encode(text.encode())) == text.encode()
