"""TorchRunner: LlamaModel on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import torch

from structgen.engine.fused_model import FusedModel
from structgen.engine.host_input import HostInput
from structgen.engine.host_runner import HostRunner
from structgen.engine.kv_cache import KVCache
from structgen.engine.llama import LlamaModel
from structgen.engine.lora import AdapterTable
from structgen.engine.lora_files import AdapterWeights, read_adapter
from structgen.engine.runner import DEFAULT_CONTEXT, MAX_ADAPTERS, MAX_LORA_RANK, PAGE_SIZE
from structgen.engine.step import StepSlot
from structgen.engine.threads import ThreadGovernor

PROMPT_TOKENS_A_ROW = 8  # prompt tokens that cost what a further decode row costs


class TorchRunner(HostRunner):
    """Owns the KV cache. It sets PyTorch's thread count, step by step.

    pages     of the KV cache; enough for `max_batch` texts of `max_context` tokens, when left out
    threads   how many PyTorch may use; as many as it was set to before the first runner, when left out
    threaded  compute beside the caller; by default a step runs when its tokens are waited for: a mask takes
              microseconds beside the milliseconds of a step, and a second thread only takes a core from the first
    fused     run steps of few tokens as one compiled function, where model and machine allow it
    """

    _torch_threads: ClassVar[int] = 0

    def __init__(
        self,
        model: LlamaModel,
        *,
        max_batch: int,
        max_context: int | None = None,
        pages: int | None = None,
        threads: int | None = None,
        threaded: bool = False,
        fused: bool = True,
        max_adapters: int = MAX_ADAPTERS,
        max_lora_rank: int = MAX_LORA_RANK,
    ) -> None:
        super().__init__(model.config.vocab_size, max_batch=max_batch, threaded=threaded)
        TorchRunner._torch_threads = TorchRunner._torch_threads or torch.get_num_threads()
        self._governor = ThreadGovernor(threads or TorchRunner._torch_threads)
        self._prompt_governor = ThreadGovernor(threads or TorchRunner._torch_threads)  # where prompts alone are plain
        self.model = model
        self.max_batch = max_batch
        self.max_context = max_context or min(model.config.context, DEFAULT_CONTEXT)
        self.page_size = PAGE_SIZE
        self.pages = pages or max_batch * -(-self.max_context // PAGE_SIZE)
        model.reserve(self.max_context)
        self._cache = KVCache(model.config, self.pages, PAGE_SIZE, model.dtype)
        fits = fused and FusedModel.fits(model)
        self._fused = FusedModel(model, self._cache, self.max_context) if fits else None
        self._inputs: dict[int, HostInput] = {}
        self.max_adapters, self.max_lora_rank = max_adapters, max_lora_rank
        self._adapters: AdapterTable | None = None  # made when the first adapter comes

    def lay_out(self, slot: StepSlot) -> None:
        tokens = slot.plan.tokens
        made = self._inputs.get(slot.index)
        if made is None or made.step_tokens < tokens:
            made = self._inputs[slot.index] = HostInput(
                step_tokens=max(tokens, self.max_batch + 256),
                max_batch=self.max_batch,
                table_pages=-(-self.max_context // PAGE_SIZE),
                page_size=PAGE_SIZE,
            )
        made.stage(slot.plan)
        slot.input = made

    @torch.inference_mode()
    def forward(self, slot: StepSlot) -> None:
        laid_out: HostInput = slot.input
        started = time.perf_counter()
        laid_out.look_up(self.last_tokens)
        if self._fused is not None and self._fused.takes(laid_out.forward):
            _use_threads(1)  # or PyTorch's second one would spin on a core that the fused step's wants
            self._fused.logits(laid_out.forward, laid_out.sampled_at, slot.logits, self._governor.threads)
        elif self._fused is not None:
            _use_threads(self._prompt_governor.threads)
            self._forward_plainly(slot, laid_out)
            self._prompt_governor.report(time.perf_counter() - started, slot.plan.tokens // PROMPT_TOKENS_A_ROW)
            return
        else:
            _use_threads(self._governor.threads)
            self._forward_plainly(slot, laid_out)
        if not slot.plan.chunks:
            self._governor.report(time.perf_counter() - started, len(slot.plan.decode))

    def _forward_plainly(self, slot: StepSlot, laid_out: HostInput) -> None:
        hidden = self.model.hidden(laid_out.forward, self._cache, self._adapters)
        if slot.rows:
            wanted = hidden if len(slot.rows) == len(hidden) else hidden[laid_out.sampled_at]
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


def _use_threads(count: int) -> None:
    """PyTorch's, for what this thread calls."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
