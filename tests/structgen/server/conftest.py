"""A model of bytes that says what it is told to, as far as its mask allows."""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from structgen.engine.errors import AdapterError, BudgetError, ModelError, ParameterError
from structgen.engine.logprobs import TokenLogprob
from structgen.grammar import Vocabulary
from structgen.server import ServerSettings, create_app

EOS = 256


class FakeTokenizer:
    """Token ids are bytes; 256 ends the answer."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [EOS])
        self.eos_token_ids = frozenset({EOS})
        self.seen: list[list[dict[str, Any]]] = []

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        self.seen.append([dict(message) for message in messages])
        return list("\n".join(str(message["content"]) for message in messages).encode())

    def token_name(self, token_id: int) -> tuple[str, bytes | None]:
        if token_id == EOS:
            return "<end>", None
        return bytes([token_id]).decode("utf-8", "replace"), bytes([token_id])

    def stream(self) -> FakeDecoder:
        return FakeDecoder()


class FakeDecoder:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._decoder.decode(bytes(ids))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


@dataclass
class FakeSequence:
    script: list[int]
    params: Any
    matcher: Any
    adapter: str | None = None
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    closed_early: bool = False
    error: str | None = None


@dataclass
class FakeOutput:
    sequence: FakeSequence
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[Any] = field(default_factory=list)


class FakeEngine:
    """Writes `script` byte by byte; where the mask forbids the next byte, the lowest token that it allows."""

    def __init__(self) -> None:
        self.script = "Hello, wörld 🙂"
        self.running: list[FakeSequence] = []
        self.submitted: list[FakeSequence] = []
        self.cancelled = 0
        self.fault: Exception | None = None
        self.adapters: tuple[str, ...] = ()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def submit(
        self,
        prompt_ids: Any,
        params: Any,
        matcher: Any = None,
        eos_token_ids: Any = frozenset(),
        *,
        adapter: str | None = None,
    ) -> Any:
        if adapter is not None and adapter not in self.adapters:
            raise AdapterError(f"there is no adapter named {adapter!r}", unknown=True)
        if matcher is not None and params.max_tokens < matcher.min_tokens_to_complete:
            raise BudgetError(params.max_tokens, matcher.min_tokens_to_complete)
        if any(token > EOS for token in params.logit_bias):
            raise ParameterError("logit_bias", f"must name tokens between 0 and {EOS}")
        sequence = FakeSequence([*self.script.encode(), EOS], params, matcher, adapter)
        self.running.append(sequence)
        self.submitted.append(sequence)
        return sequence

    def read_adapter(self, folder: Any) -> Any:
        if folder == "nowhere":
            raise ModelError("there is no adapter_config.json in nowhere", hint="give the folder that PEFT saved")
        return folder

    def load_adapter(self, name: str, source: Any) -> None:
        if name in self.adapters:
            raise AdapterError(f"an adapter named {name!r} is loaded already", hint="unload it first")
        self.adapters = (*self.adapters, name)

    def unload_adapter(self, name: str) -> None:
        if name not in self.adapters:
            raise AdapterError(f"there is no adapter named {name!r}", unknown=True)
        self.adapters = tuple(other for other in self.adapters if other != name)

    def step(self) -> list[FakeOutput]:
        self.gate.wait(10)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        return [self._advance(sequence) for sequence in list(self.running)]

    def cancel(self, sequence: FakeSequence) -> None:
        if sequence in self.running:
            self.cancelled += 1
            self.running.remove(sequence)

    def _advance(self, sequence: FakeSequence) -> FakeOutput:
        token = self._pick(sequence)
        if sequence.matcher is not None:
            assert sequence.matcher.accept(token)
        if token != EOS:
            sequence.output_ids.append(token)
        if token == EOS or len(sequence.output_ids) == sequence.params.max_tokens:
            reason = "stop" if token == EOS and not sequence.closed_early else "length"
            sequence.finish_reason = reason
            self.running.remove(sequence)
        new = [] if token == EOS else [token]
        asked = sequence.params.top_logprobs
        told = [TokenLogprob(each, -0.5, ((each, -0.5), (EOS, -1.5))[:asked]) for each in new]
        return FakeOutput(sequence, new, sequence.finish_reason, told if sequence.params.logprobs else [])

    @staticmethod
    def _pick(sequence: FakeSequence) -> int:
        wanted = sequence.script.pop(0) if sequence.script else EOS
        if sequence.matcher is None:
            return wanted
        row = np.zeros((EOS + 32) // 32, dtype=np.int32)
        sequence.matcher.fill_mask(row, sequence.params.max_tokens - len(sequence.output_ids))
        sequence.closed_early |= sequence.matcher.mask_was_narrowed
        allowed = [token for token in range(EOS + 1) if row.view(np.uint32)[token // 32] >> (token % 32) & 1]
        if wanted in allowed:
            return wanted
        sequence.script.insert(0, wanted)
        return EOS if EOS in allowed else allowed[0]


class FakeModel:
    """What the server needs of a `structgen.LLM`."""

    name = "fake-model"

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.engine = FakeEngine()


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def settings() -> ServerSettings:
    return ServerSettings(grace=0.5, validators=0)


@pytest.fixture
def client(model: FakeModel, settings: ServerSettings) -> Iterator[TestClient]:
    with TestClient(create_app(model, settings=settings), raise_server_exceptions=False) as client:
        yield client
    assert not model.engine.running
