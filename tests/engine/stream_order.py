"""StreamOrder: finds pairs of accesses to one tensor that nothing orders, on streams that are not there.

Each stream, and the host, has a vector clock. An operation happens after what its stream did, after events and streams
that the stream was told to wait for, and after all that the host knew to be through when it asked for the operation.
Two accesses of a storage, one of them a write, must be in that order; work on a fake GPU is done at once, so that their
results are right by chance. (Lamport 1978; the clocks are those of data race detectors.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Clock = dict[object, int]
HOST, CALLER = "the host", "the caller's stream"


def absorb(clock: Clock, other: Clock) -> None:
    for stream, time in other.items():
        clock[stream] = max(clock.get(stream, 0), time)


@dataclass
class Accesses:
    """Of one storage, which is kept so that its address is not used again. Stream -> (time, what was done)."""

    storage: torch.UntypedStorage
    written: tuple[object, int, str] | None = None
    read: dict[object, tuple[int, str]] = field(default_factory=dict)


class StreamOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every operation while it is entered. `faults` are sentences.

    current   the stream that operations are asked for on, or None outside of any
    pinned    storages on the host that copies read and write; other storages are the device's once a stream used them,
              or once they were made for a device
    """

    def __init__(self, current: Callable[[], object | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = current
        self.clocks: dict[object, Clock] = {HOST: {}}
        self.names: dict[object, str] = {}
        self.pinned: set[int] = set()
        self.on_device: set[int] = set()
        self.for_device = False  # what is being made
        self.faults: list[str] = []
        self._accesses: dict[int, Accesses] = {}

    def clock(self, stream: object) -> Clock:
        return self.clocks.setdefault(stream, {})

    def host_knows(self, clock: Clock) -> None:
        absorb(self.clocks[HOST], clock)

    def host_knows_all(self) -> None:
        for clock in list(self.clocks.values()):
            self.host_knows(clock)

    def host_writes(self, tensor: Tensor, what: str) -> None:
        """Through numpy, which is not seen otherwise."""
        self._access(HOST, [], [tensor], what)

    def host_reads(self, tensor: Tensor, what: str) -> None:
        self._access(HOST, [tensor], [], what)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        schema = func._schema
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
        if is_view and not schema.is_mutable:
            return out
        written = [
            tensor
            for argument, value in zip(schema.arguments, [*args, *kwargs.values()], strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(value)
        ]
        reads, made = _tensors([args, kwargs]), _tensors(out)
        stream = self.current()
        keys = {_key(each) for each in [*reads, *made]}
        if stream is not None or self.for_device:
            self.on_device |= keys
        if stream is None:
            stream = CALLER if keys & (self.on_device - self.pinned) else HOST
        self._access(stream, reads, [*written, *made], str(func))
        return out

    def _access(self, stream: object, reads: Iterable[Tensor], writes: Iterable[Tensor], what: str) -> None:
        clock = self.clock(stream)
        absorb(clock, self.clocks[HOST])
        now = clock[stream] = clock.get(stream, 0) + 1
        for tensor in reads:
            known = self._of(tensor)
            self._check(clock, known.written, stream, what)
            known.read[stream] = now, what
        for tensor in writes:
            known = self._of(tensor)
            self._check(clock, known.written, stream, what)
            for reader, (time, read) in known.read.items():
                if reader != stream:
                    self._check(clock, (reader, time, read), stream, what)
            known.written, known.read = (stream, now, what), {}

    def _check(self, clock: Clock, before: tuple[object, int, str] | None, stream: object, what: str) -> None:
        if before is not None and clock.get(before[0], 0) < before[1]:
            one, other = (self.names.get(each, str(each)) for each in (before[0], stream))
            self.faults.append(f"nothing orders {before[2]} on {one} and then {what} on {other}")

    def _of(self, tensor: Tensor) -> Accesses:
        return self._accesses.setdefault(_key(tensor), Accesses(tensor.untyped_storage()))


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
