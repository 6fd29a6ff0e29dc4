"""transformers as the peer of the benchmark: the same weights, its logits and its `generate`."""

from __future__ import annotations

import time
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structgen.engine.errors import EngineError
from structgen.engine.llama import LlamaModel
from structgen.engine.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a model's next-token distributions stand from transformers' in float32, over one text.

    kl: mean Kullback-Leibler divergence in nats; same_top: share of positions with the same best token.
    """

    largest_logit: float
    kl: float
    same_top: float
    perplexity: float


class TransformersPeer:
    """The file or folder in float32. EngineError when transformers is not installed.

    transformers unpacks a GGUF file in 15 s. With `quick` it gets the tensors that we unpacked: then its forward pass
    alone is the judge of ours, not its reading (that has a test of its own).
    """

    def __init__(self, path: Path, *, quick: bool = False) -> None:
        transformers = _transformers()
        if quick and path.is_file():
            self._model: Any = _from_our_tensors(path)
            return
        place = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        with redirect_stderr(StringIO()):  # its progress bars
            self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **place)

    @classmethod
    def random(cls, config: ModelConfig, device: str) -> TransformersPeer:
        """The shapes of a model with weights of transformers' own making, in bfloat16: for time, not for comparison."""
        peer = cls.__new__(cls)
        with torch.device(device):
            peer._model = _transformers().LlamaForCausalLM(_their_config(config)).to(torch.bfloat16).eval()
        return peer

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> Tensor:
        """float32 [tokens, vocab_size]."""
        logits: Tensor = self._model(torch.tensor([ids])).logits[0].float()
        return logits

    def compare(self, model: LlamaModel, ids: list[int], expected: Tensor) -> Difference:
        """`expected` are this peer's logits of `ids`, computed while it was float32."""
        logits = model.logits(ids).float()
        ours, theirs = logits.log_softmax(-1), expected.log_softmax(-1)
        following = torch.tensor(ids[1:])[:, None]
        return Difference(
            largest_logit=float((logits - expected).abs().max()),
            kl=float((theirs.exp() * (theirs - ours)).sum(-1).mean()),
            same_top=float((logits.argmax(-1) == expected.argmax(-1)).float().mean()),
            perplexity=float((-ours[:-1].gather(1, following)).mean().exp()),
        )

    def to_bfloat16(self) -> None:
        self._model = self._model.to(torch.bfloat16)

    @torch.inference_mode()
    def decode(self, prompt: list[int], tokens: int) -> float:
        """Seconds of one greedy `generate` call that makes exactly `tokens` tokens."""
        ids = torch.tensor([prompt], device=self._model.device)
        started = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
        )
        return time.perf_counter() - started


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise EngineError(
            "the benchmark compares with transformers, which is not installed", hint="pip install 'structgen[bench]'"
        ) from None
    return transformers


def _their_config(config: ModelConfig) -> Any:
    """Without the scaling of the rotary embedding."""
    return _transformers().LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tied_head,
    )


def _from_our_tensors(file: Path) -> Any:
    from structgen.engine.gguf_weights import GGUFWeights

    weights = GGUFWeights(file)
    config = weights.config
    if config.rope_scaling is not None:
        raise EngineError("the quick benchmark takes no scaled rotary embedding", hint="leave out --quick")
    theirs = _their_config(config)
    with torch.device("meta"):
        model = _transformers().LlamaForCausalLM(theirs)
    names = [name.removeprefix("model.") for name in model.state_dict()]
    tensors = {name: weights.get(name) for name in names if not (config.tied_head and name == "lm_head.weight")}
    outer = {name if name == "lm_head.weight" else f"model.{name}": tensor for name, tensor in tensors.items()}
    model.load_state_dict(outer, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(theirs)  # its table is computed, not loaded
    return model.eval()
