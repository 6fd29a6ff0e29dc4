"""Which runner computes a model: the fastest one that the model's device and shape allow."""

from __future__ import annotations

import logging

from structgen.engine.llama import LlamaModel
from structgen.engine.runner import MAX_ADAPTERS, MAX_LORA_RANK, ModelRunner
from structgen.engine.torch_runner import TorchRunner

log = logging.getLogger("structgen.engine")


def choose_runner(
    model: LlamaModel,
    *,
    max_batch: int,
    max_context: int | None = None,
    max_adapters: int = MAX_ADAPTERS,
    max_lora_rank: int = MAX_LORA_RANK,
) -> ModelRunner:
    """A runner for the model where it lies; a log line says which one, and why."""
    if model.device.type == "cpu":
        return TorchRunner(
            model,
            max_batch=max_batch,
            max_context=max_context,
            max_adapters=max_adapters,
            max_lora_rank=max_lora_rank,
        )
    from structgen.engine.cuda_runner import CudaRunner

    runner = CudaRunner(
        model, max_batch=max_batch, max_context=max_context, max_adapters=max_adapters, max_lora_rank=max_lora_rank
    )
    log.info("runner: PyTorch with CUDA graphs on %s; preparing kernels and graphs", model.device)
    runner.warm_up()
    return runner
