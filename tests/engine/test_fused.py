"""The compiled step against plain PyTorch, and against itself in other company."""

from __future__ import annotations

import threading
from itertools import chain

import pytest
import torch
from torch import Tensor

from structgen.engine import Engine, LlamaModel, ModelConfig, SamplingParams
from structgen.engine.crew import Crew
from structgen.engine.fused_best import best_allowed
from structgen.engine.fused_model import FusedModel
from structgen.engine.fused_step import MOST_TOKENS
from structgen.engine.kv_cache import KVCache, PageTable
from structgen.engine.linear import Int8Linear
from structgen.engine.llama import Chunk, ForwardInput
from structgen.engine.sampled import NOT_FINITE, NOTHING_ALLOWED, OK
from structgen.engine.weight_source import DictWeights
from tests.engine.tiny import random_tensors

pytestmark = pytest.mark.usefixtures("one_thread")

# No size is a multiple of a block's 64 outputs; four query heads share two key heads.
CONFIG = ModelConfig(
    vocab_size=201,
    hidden=80,
    intermediate=152,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context=256,
    tied_head=False,
)
PAGE = 4


def with_exact_weights(model: LlamaModel) -> LlamaModel:
    """The same 8-bit weights as a float32 network: what the compiled step computes but for the cache's rounding."""
    exact = LlamaModel(CONFIG, DictWeights(random_tensors(CONFIG, seed=5)), "float32")

    def take(linear: object, other: object) -> None:
        assert isinstance(linear, Int8Linear)
        other.weight = linear.weight.float() * linear.scale.float()[:, None]  # type: ignore[attr-defined]

    for layer, other in zip(model.layers, exact.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            take(getattr(layer, name), getattr(other, name))
    take(model.output_head, exact.output_head)
    exact.embedding = model.embedding.float()
    for layer, other in zip(model.layers, exact.layers, strict=True):
        other.attention_norm.copy_(layer.attention_norm)
        other.mlp_norm.copy_(layer.mlp_norm)
    exact.final_norm = model.final_norm.float()
    return exact


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    model = LlamaModel(CONFIG, DictWeights(random_tensors(CONFIG, seed=5)), "int8")
    if not FusedModel.fits(model):
        pytest.skip("the compiled step needs AVX-512 (and numba's compiler)")
    return model


class Bench:
    """A cache, the compiled step on it, and sequences that are fed to it piece by piece."""

    def __init__(self, model: LlamaModel, threads: int = 1) -> None:
        self.cache = KVCache(CONFIG, 128, PAGE, torch.bfloat16)
        self.fused = FusedModel(model, self.cache, CONFIG.context)
        self.threads = threads
        self.texts: list[list[int]] = []
        self.pages: list[list[int]] = []

    def open(self) -> int:
        """A new sequence, on pages that do not adjoin."""
        number = len(self.texts)
        self.texts.append([])
        self.pages.append([(7 * (16 * number + page) + 3) % 128 for page in range(16)])
        return number

    def feed(self, pieces: dict[int, list[int]]) -> Tensor:
        """Run a step with these tokens of these sequences; float32 logits of each piece's last token, in order.

        Pieces of one token are decode rows and must come first.
        """
        decode = [number for number, piece in pieces.items() if len(piece) == 1]
        assert decode == [*pieces][: len(decode)]
        ids, positions, places, last = [], [], [], []
        for number, piece in pieces.items():
            for token in piece:
                position = len(self.texts[number])
                self.texts[number].append(token)
                ids.append(token)
                positions.append(position)
                places.append(self.pages[number][position // PAGE] * PAGE + position % PAGE)
            last.append(len(ids) - 1)
        width = max((-(-len(self.texts[number]) // PAGE) for number in decode), default=0)
        tables = [self.pages[number][:width] for number in decode]
        chunks, offset = [], len(decode)
        for number, piece in list(pieces.items())[len(decode) :]:
            end = len(self.texts[number])
            table = PageTable(pages=torch.tensor(self.pages[number][: -(-end // PAGE)]), rows=1)
            chunks.append(Chunk(offset=offset, count=len(piece), start=end - len(piece), table=table))
            offset += len(piece)
        step = ForwardInput(
            ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            places=torch.tensor(places),
            decode_table=PageTable(pages=torch.tensor([*chain(*tables)], dtype=torch.int64), rows=len(decode)),
            decode_lengths=tuple(len(self.texts[number]) for number in decode),
            chunks=chunks,
        )
        logits = torch.full((len(last) + 1, CONFIG.vocab_size), torch.nan)
        self.fused.logits(step, torch.tensor(last), logits, self.threads)
        assert logits[-1].isnan().all(), "it wrote beyond its rows"
        return logits[:-1]


def tokens_of(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, CONFIG.vocab_size, (count,), generator=generator)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 23, MOST_TOKENS])
def test_a_chunk_of_any_length_gives_the_logits_of_plain_pytorch(count: int, model: LlamaModel) -> None:
    exact = with_exact_weights(model)
    bench = Bench(model)
    number = bench.open()
    bench.feed({number: tokens_of(1, 9)})
    found = bench.feed({number: tokens_of(2, count)})[0]
    expected = exact.logits(bench.texts[number])[-1]
    assert (found - expected).norm() / expected.norm() < 0.01  # the cache's keys and values are bfloat16
    rounded = model.logits(bench.texts[number])[-1].float()
    assert (rounded - expected).norm() > (found - expected).norm(), "float32 activations should lose less"


def test_what_else_is_in_a_step_changes_no_bit_of_a_token(model: LlamaModel) -> None:
    """A text token by token, in chunks, and beside others: the same logits to the last bit."""
    text = tokens_of(3, 30)
    bench = Bench(model)
    number = bench.open()
    slowly = [bench.feed({number: [token]})[0] for token in text]
    bench = Bench(model, threads=3)
    a, b, c, d = (bench.open() for _ in range(4))
    bench.feed({a: text[:1], b: tokens_of(4, 5)})
    assert torch.equal(bench.feed({a: text[1:2], b: [7], c: tokens_of(6, 11)})[0], slowly[1])
    assert torch.equal(bench.feed({b: [8], a: text[2:9], d: tokens_of(7, 20)})[1], slowly[8])
    assert torch.equal(bench.feed({a: text[9:25]})[0], slowly[24])
    assert torch.equal(bench.feed({c: [1], a: text[25:30], d: tokens_of(8, 3)})[1], slowly[29])


def test_nan_in_the_cache_is_nan_in_the_logits_of_its_own_sequence_only(model: LlamaModel) -> None:
    bench = Bench(model)
    good, bad = bench.open(), bench.open()
    bench.feed({good: tokens_of(9, 6), bad: tokens_of(10, 6)})
    for page in bench.pages[bad]:
        for layer in bench.cache.layers:
            layer[page, : layer.shape[1] // 2] = torch.nan
    logits = bench.feed({good: [5], bad: [6]})
    assert logits[0].isfinite().all()
    assert logits[1].isnan().any()


def test_greedy_texts_are_the_same_alone_and_together(model: LlamaModel) -> None:
    """Through the engine, prompts in one chunk with others' decode rows: not a bit depends on the batch."""
    prompts = [tokens_of(20 + number, 2 + number) for number in range(6)]

    def texts(max_batch: int) -> list[list[int]]:
        engine = Engine(model, max_batch=max_batch, share_prefixes=False)
        sequences = [engine.submit(prompt, SamplingParams(max_tokens=25)) for prompt in prompts]
        while engine.has_work:
            engine.step()
        return [sequence.output_ids for sequence in sequences]

    assert texts(1) == texts(2) == texts(6)


def test_a_crew_finishes_without_threads_that_never_come_and_waits_for_those_that_do() -> None:
    crew, began, go_on, seen = Crew(), threading.Event(), threading.Event(), list[int]()

    def work(number: int) -> None:
        if number == 0:
            assert began.wait(10)
            threading.Timer(0.05, go_on.set).start()
        else:
            began.set()
            assert go_on.wait(10)
        seen.append(number)

    crew.run(work, 2)
    assert seen == [0, 1]
    busy = threading.Event()
    crew._orders[0].put(_Stuck(busy))  # type: ignore[arg-type]
    crew.run(seen.append, 2)
    busy.set()
    assert seen == [0, 1, 0], "what had not begun was called off"


class _Stuck:
    """An order that keeps its thread until it is told."""

    def __init__(self, until: threading.Event) -> None:
        self._until = until

    def begin(self, _number: int) -> None:
        assert self._until.wait(10)


def test_a_failure_in_a_thread_of_the_crew_is_told() -> None:
    began = threading.Event()

    def work(number: int) -> None:
        if number:
            began.set()
            raise ValueError("in the thread")
        assert began.wait(10)

    with pytest.raises(RuntimeError, match="failed"):
        Crew().run(work, 2)


@pytest.mark.parametrize("width", [32, 201, 1000])
def test_the_best_allowed_token_is_what_masking_and_looking_gives(width: int) -> None:
    """Random logits with ties, zeros, infinities and NaN, against PyTorch's own maximum."""
    generator = torch.Generator().manual_seed(width)
    for trial in range(200):
        logits = torch.randint(-4, 5, (3, width), generator=generator).float() / 2
        logits += torch.randn(logits.shape, generator=generator) * (trial % 2)
        for value in (torch.nan, -torch.nan, torch.inf, -torch.inf)[: trial % 5]:
            logits[trial % 3, int(torch.randint(0, width, (1,), generator=generator))] = value
        density = int(torch.randint(0, 3, (1,), generator=generator))
        allowed = torch.randint(0, 100, (3, width), generator=generator) < (1, 30, 90)[density]
        constrained = [True, trial % 4 < 2, trial % 7 > 0]
        words = torch.nn.functional.pad(allowed, (0, -width % 32)).view(3, -1, 32)
        mask = (words.long() << torch.arange(32)).sum(-1)
        mask = torch.where(mask >= 1 << 31, mask - (1 << 32), mask).int()
        expected = logits.masked_fill(~(allowed | ~torch.tensor(constrained)[:, None]), -torch.inf)
        raw = logits.clone()
        highest, tokens, status = best_allowed(logits, mask, constrained)
        for row in range(3):
            if not raw[row].max().isfinite():
                assert status[row] == NOT_FINITE
            elif expected[row].max() == -torch.inf:
                assert status[row] == NOTHING_ALLOWED
            else:
                assert status[row] == OK
                assert torch.equal(logits[row], expected[row])
                assert highest[row] == expected[row].max()
                assert tokens[row] == (expected[row] == expected[row].max()).nonzero()[0, 0]
