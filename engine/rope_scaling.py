"""RopeScaling: how a model stretches its rotary embedding to longer texts, read from a config and turned into numbers.

none, dynamic  the plain frequencies. `dynamic` keeps them up to the trained context and changes all of them with the
               length of a longer text, which cached keys cannot follow: there it ends (`ModelConfig.exact_context`)
linear         every frequency divided by `factor` (Chen et al. 2023)
llama3         Llama 3.1: slow waves divided, fast ones kept, those between blended by their turns in the old context
yarn           the same idea with the blend linear in the pair's index (Peng et al. 2023), and cos and sin scaled
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from structgen.engine.errors import ModelError

KNOWN = "default, linear, dynamic, llama3 and yarn are"


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """`original_context`: positions before stretching (llama3 and yarn). What follows it is yarn's."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.factor, self.original_context, self.beta_fast, self.beta_slow, self.attention_factor)
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ModelError(f"rope scaling {self.kind} with a number that is not positive: {numbers}")
        if self.kind == "llama3" and self.low_freq_factor == self.high_freq_factor:
            raise ModelError("rope scaling llama3 needs two different frequency factors")

    def apply(self, plain: list[float], theta: float) -> list[float]:
        """Stretched frequencies, from the plain ones in radians per position, fast pairs first."""
        if self.kind == "linear":
            return [frequency / self.factor for frequency in plain]
        if self.kind == "llama3":
            keep = [self._llama3_share(frequency) for frequency in plain]
        else:
            keep = self._yarn_shares(len(plain), theta)
        return [
            share * frequency + (1 - share) * frequency / self.factor
            for share, frequency in zip(keep, plain, strict=True)
        ]

    def _llama3_share(self, frequency: float) -> float:
        turns = self.original_context * frequency / (2 * math.pi)
        return min(max((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0), 1.0)

    def _yarn_shares(self, pairs: int, theta: float) -> list[float]:
        """1 up to the pair that turns `beta_fast` times in the old context, 0 from the one that turns `beta_slow`."""

        def pair_of(turns: float) -> float:
            return pairs * math.log(self.original_context / (turns * 2 * math.pi)) / math.log(theta)

        first, last = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        width = last - first or 0.001
        return [1 - min(max((pair - first) / width, 0.0), 1.0) for pair in range(pairs)]


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """What yarn multiplies cos and sin by, so that attention stays as sharp over longer texts."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rope_kind(options: Mapping[str, Any]) -> str:
    """The name in rope_parameters or rope_scaling: newer files say `rope_type`, older ones `type`."""
    return str(options.get("rope_type") or options.get("type") or "default")


def scaling_from_huggingface(options: Mapping[str, Any], context: int, original: Any) -> RopeScaling | None:
    """From config.json's options. `context` and `original` are the model's max_position_embeddings and the field
    `original_max_position_embeddings` beside it, which some models have. KeyError for what is missing."""
    kind = rope_kind(options)
    if any(isinstance(value, Mapping) for value in options.values()):
        raise ModelError("rope parameters that differ by layer are not implemented", hint="Llama has one set for all")
    if options.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ModelError("the model rotates only a part of each head, which is not implemented")
    if kind in ("default", "dynamic"):
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise ModelError(f"rope scaling {kind!r} is not implemented", hint=KNOWN)
    if kind == "linear":
        return RopeScaling(kind="linear", factor=float(options["factor"]))
    original = int(original or options.get("original_max_position_embeddings") or context)
    if kind == "yarn":
        return _yarn(options, context, original)
    return RopeScaling(
        kind="llama3",
        factor=float(options["factor"]),
        low_freq_factor=float(options["low_freq_factor"]),
        high_freq_factor=float(options["high_freq_factor"]),
        original_context=original,
    )


def _yarn(options: Mapping[str, Any], context: int, original: int) -> RopeScaling:
    factor = float(options["factor"] or context / original)
    attention, numerator, denominator = (options.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if attention is None:
        attention = yarn_attention_factor(factor)
        if numerator and denominator:
            attention = yarn_attention_factor(factor, numerator) / yarn_attention_factor(factor, denominator)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=float(options.get("beta_fast") or 32),
        beta_slow=float(options.get("beta_slow") or 1),
        truncate=bool(options.get("truncate", True)),
        attention_factor=float(attention),
    )
