"""Which runner computes a model: the fastest one that the model's device and shape allow."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from structgen.engine.llama import LlamaModel
from structgen.engine.runner import MAX_ADAPTERS, MAX_LORA_RANK, ModelRunner
from structgen.engine.torch_runner import TorchRunner

if TYPE_CHECKING:
    from structgen.engine.cuda_runner import CudaRunner

log = logging.getLogger("structgen.engine")


def choose_runner(
    model: LlamaModel,
    *,
    max_batch: int,
    max_context: int | None = None,
    max_adapters: int = MAX_ADAPTERS,
    max_lora_rank: int = MAX_LORA_RANK,
    step_tokens: int | None = None,
) -> ModelRunner:
    """A runner for the model where it lies, ready for steps of `step_tokens`; a log line says which one, and why."""
    if model.device.type == "cpu":
        return TorchRunner(
            model,
            max_batch=max_batch,
            max_context=max_context,
            max_adapters=max_adapters,
            max_lora_rank=max_lora_rank,
        )
    runner = _on_gpu(
        model, max_batch=max_batch, max_context=max_context, max_adapters=max_adapters, max_lora_rank=max_lora_rank
    )
    runner.warm_up(step_tokens)
    return runner


def _on_gpu(model: LlamaModel, **options: Any) -> CudaRunner:
    from structgen.engine.cuda_runner import CudaRunner
    from structgen.kernels.model_shape import UnsupportedShape

    try:
        from structgen.engine.megakernel_runner import MegakernelRunner

        runner = MegakernelRunner(model, **options)
    except (UnsupportedShape, ImportError) as reason:
        log.info("runner: PyTorch with CUDA graphs on %s; no megakernel: %s", model.device, reason)
        return CudaRunner(model, **options)
    log.info("runner: the megakernel for up to 8 rows a step on %s, PyTorch with CUDA graphs beyond", model.device)
    return runner
