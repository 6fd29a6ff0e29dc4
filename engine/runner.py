"""ModelRunner: the seam between the engine and whatever computes logits; TorchRunner: PyTorch on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import torch

from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import LlamaModel
from structgen.engine.lora import AdapterTable
from structgen.engine.lora_files import AdapterWeights, read_adapter
from structgen.engine.step import StepSlot
from structgen.engine.threads import ThreadGovernor

PAGE_SIZE = 16
DEFAULT_CONTEXT = 8192
MAX_ADAPTERS = 8
MAX_LORA_RANK = 64


class ModelRunner(Protocol):
    """Steps run in the order they are launched. `launch` may return before the step has run; `wait` may not.

    After `wait`, `slot.logits` holds one row for each of `slot.rows`. An exception from either ends the step, and
    running the same slot's tokens again must give the same result.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    @property
    def pages(self) -> int: ...

    def launch(self, slot: StepSlot) -> None: ...

    def wait(self, slot: StepSlot) -> None: ...

    def clear(self, pages: Iterable[int]) -> None:
        """Forget what stands in the pages of a sequence that failed: it may be NaN, which no mask hides."""
        ...


@runtime_checkable
class AdapterRunner(ModelRunner, Protocol):
    """A runner that knows LoRA adapters: `slot.input.adapters` names a slot for each token of a step."""

    @property
    def max_adapters(self) -> int: ...

    def read_adapter(self, folder: str | Path) -> AdapterWeights: ...

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Fill a slot (from 1) that no step in flight names."""
        ...


class TorchRunner:
    """Owns the KV cache. The device is the caller's own thread: `launch` notes the step, `wait` computes it.

    So a step that is launched at the end of a tick costs nothing until the next tick needs its logits.
    It sets PyTorch's thread count, step by step.
    """

    _torch_threads: ClassVar[int] = 0

    def __init__(
        self,
        model: LlamaModel,
        *,
        max_batch: int,
        max_context: int | None = None,
        threads: int | None = None,
        max_adapters: int = MAX_ADAPTERS,
        max_lora_rank: int = MAX_LORA_RANK,
    ) -> None:
        """`threads`: how many PyTorch may use; as many as it was set to before the first runner, when left out."""
        TorchRunner._torch_threads = TorchRunner._torch_threads or torch.get_num_threads()
        self._governor = ThreadGovernor(threads or TorchRunner._torch_threads)
        self.model = model
        self.vocab_size = model.config.vocab_size
        self.max_context = max_context or min(model.config.context, DEFAULT_CONTEXT)
        self.page_size = PAGE_SIZE
        self.pages = max_batch * -(-self.max_context // PAGE_SIZE)
        model.reserve(self.max_context)
        self._cache = KVCache(model.config, self.pages, PAGE_SIZE, model.dtype)
        self.max_adapters, self.max_lora_rank = max_adapters, max_lora_rank
        self._adapters: AdapterTable | None = None  # made when the first adapter comes

    def launch(self, slot: StepSlot) -> None:
        """Nothing to do: there is no second thread to hand the step to."""

    def wait(self, slot: StepSlot) -> None:
        if torch.get_num_threads() != self._governor.threads:
            torch.set_num_threads(self._governor.threads)
        started = time.perf_counter()
        self._forward(slot)
        if not slot.plan.chunks:
            self._governor.report(time.perf_counter() - started, len(slot.plan.decode))

    def _forward(self, slot: StepSlot) -> None:
        hidden = self.model.hidden(slot.input, self._cache, self._adapters)
        if slot.rows:
            wanted = hidden if len(slot.rows) == len(hidden) else hidden[slot.sampled_at]
            slot.logits[: len(slot.rows)] = self.model.head(wanted)

    def clear(self, pages: Iterable[int]) -> None:
        self._cache.clear(pages)

    def read_adapter(self, folder: str | Path) -> AdapterWeights:
        """Any thread may call this: it only reads files. ModelError when the adapter cannot be used."""
        return read_adapter(folder, self.model.config)

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        if self._adapters is None:
            self._adapters = AdapterTable(
                self.model.config, slots=self.max_adapters, max_rank=self.max_lora_rank, dtype=self.model.dtype
            )
        self._adapters.load(slot, weights)
