"""ModelShape: the sizes that fix the schedule of a decode step, and which of them the kernels can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

BLOCK = 64  # weights move and are multiplied in blocks of 64 x 64
PAGE_SIZE = 16  # tokens in a page of the KV cache


class Config(Protocol):
    """What is read of a model's configuration (the engine's ModelConfig)."""

    @property
    def hidden(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...


class UnsupportedShape(ValueError):
    """The kernels cannot run this model; the message names the size at fault. The caller falls back to PyTorch."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes in elements. hidden, intermediate and head_dim are multiples of 64; the vocabulary need not be."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate", "head_dim"):
            if getattr(self, name) % BLOCK or getattr(self, name) <= 0:
                raise UnsupportedShape(f"{name} {getattr(self, name)} is not a multiple of {BLOCK}")
        if self.head_dim not in (64, 128, 256):
            raise UnsupportedShape(f"head_dim {self.head_dim} is not 64, 128 or 256")
        if self.heads % self.kv_heads:
            raise UnsupportedShape(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")

    @classmethod
    def of(cls, config: Config) -> ModelShape:
        return cls(
            hidden=config.hidden,
            intermediate=config.intermediate,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            norm_eps=config.norm_eps,
        )

    @property
    def group(self) -> int:
        """Query heads for one key/value head."""
        return self.heads // self.kv_heads

    @property
    def group_rows(self) -> int:
        """Rows of the QKV product that belong to one key/value head: its queries, then its key, then its value."""
        return (self.group + 2) * self.head_dim

    @property
    def hidden_blocks(self) -> int:
        return self.hidden // BLOCK

    @property
    def group_blocks(self) -> int:
        """Blocks of columns of the output projection that one key/value head's queries fill."""
        return self.group * self.head_dim // BLOCK

    @property
    def neuron_blocks(self) -> int:
        return self.intermediate // BLOCK

    @property
    def vocab_blocks(self) -> int:
        """Blocks of rows of the head; the last one may be padded."""
        return -(-self.vocab_size // BLOCK)

    @property
    def weight_bytes(self) -> int:
        """Bytes of bfloat16 weights that one step reads."""
        attention = self.kv_heads * self.group_rows * self.hidden + self.heads * self.head_dim * self.hidden
        layer = attention + 3 * self.intermediate * self.hidden
        return 2 * (self.layers * layer + self.vocab_blocks * BLOCK * self.hidden)


LLAMA_1B = ModelShape(hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, head_dim=64, vocab_size=128256)
SMOLLM2_135M = ModelShape(hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_dim=64, vocab_size=49152)
