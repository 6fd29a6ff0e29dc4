"""ModelRunner: the seam between the engine and whatever computes logits and samples from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from structgen.engine.lora_files import AdapterWeights
from structgen.engine.step import StepSlot

PAGE_SIZE = 16
DEFAULT_CONTEXT = 8192
PREFILL_TOKENS = 256  # prompt tokens in one step, unless an engine is told otherwise
MOST_DEPTH = 2  # steps in flight
MOST_SLOTS = MOST_DEPTH + 1  # theirs, and one in which single rows run again
MAX_ADAPTERS = 8
MAX_LORA_RANK = 64


class ModelRunner(Protocol):
    """A device: what is asked of it runs in the order it is asked, beside the caller or only when it is waited for.

    For each step the engine calls `launch`, then `sample`, then `wait`; with two steps in flight, the next step's
    `launch` comes before this one's `wait`. The token that a row samples stays on the device under the row's lane
    (`StepSlot.lanes`), where the next step finds it without the host knowing it.

    An exception from any of the three ends the step. Running the same slot's tokens again must give the same result.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    @property
    def pages(self) -> int: ...

    @property
    def pinned(self) -> bool:
        """Whether slots shall lie in page-locked memory, for a device with its own memory."""
        ...

    @property
    def shares_masks(self) -> bool:
        """Whether it takes masks that recur as they are (`StepSlot.shared`), instead of copies."""
        ...

    @property
    def default_depth(self) -> int:
        """How many steps in flight are best here."""
        ...

    def launch(self, slot: StepSlot) -> None:
        """Lay the plan's tokens and page tables out now, and start the forward pass; may return before it has run."""
        ...

    def sample(self, slot: StepSlot) -> None:
        """Pick a token for each of `slot.rows`, under the masks that are in the slot by now; may return before."""
        ...

    def wait(self, slot: StepSlot, seconds: float) -> None:
        """Until the slot's tokens, status and logprobs have arrived; StepTimeoutError after `seconds`."""
        ...

    def clear(self, pages: Iterable[int]) -> None:
        """Forget what stands in the pages of a sequence that failed: it may be NaN, which no mask hides."""
        ...

    def spans(self, slot: StepSlot) -> list[tuple[str, float, float]]:
        """When the step's parts ran on the device: (forward or sample, begin, end), `time.perf_counter` seconds."""
        ...

    def close(self) -> None:
        """Give the device back. Idempotent."""
        ...


@runtime_checkable
class AdapterRunner(ModelRunner, Protocol):
    """A runner that knows LoRA adapters: each token of a step runs under its sequence's `adapter_slot`."""

    @property
    def max_adapters(self) -> int: ...

    def read_adapter(self, folder: str | Path) -> AdapterWeights: ...

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Fill a slot (from 1) that no step in flight names."""
        ...
