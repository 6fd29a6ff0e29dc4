"""AdapterRegistry: which LoRA adapters are loaded, in which slot, and how many sequences use each. Plain Python.

free slot --load--> named (requests may ask for it) --unload--> leaving (nobody may; its sequences go on)
          <---------------------------------------- refs = 0 ---------------------/

A sequence holds one reference from `submit` until its pages are given up, that is until no step in flight has a row of
it: what a slot's tensors hold never changes under a running step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from structgen.engine.errors import AdapterError

LONGEST_NAME = 256


@dataclass(eq=False)
class Adapter:
    """A loaded adapter. `slot` counts from 1 (0 is the model as it is); `refs` are the sequences that hold it.

    `page_seed` is no other load's, even of the same files: pages of the cache are found again under one adapter only.
    """

    name: str
    slot: int
    page_seed: bytes
    refs: int = 0
    leaving: bool = False

    def __repr__(self) -> str:
        return f"<Adapter {self.name} slot {self.slot}, {self.refs} refs{', leaving' if self.leaving else ''}>"


class AdapterRegistry:
    """The engine thread alone changes it. `names` is replaced, never changed: other threads may read it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.names: tuple[str, ...] = ()
        self._free = list(range(slots, 0, -1))
        self._loaded: dict[str, Adapter] = {}
        self._leaving: list[Adapter] = []
        self._loads = 0

    def load(self, name: str, fill: Callable[[int], None]) -> Adapter:
        """Give `name` a slot, whose tensors `fill(slot)` writes; when that raises, nothing has happened.

        AdapterError when the name is taken or not a name, or when no slot is free.
        """
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise AdapterError(f"{name[:LONGEST_NAME]!r} is not an adapter's name", hint="use printable characters")
        if name in self._loaded:
            raise AdapterError(f"an adapter named {name!r} is loaded already", hint="unload it first")
        if not self._free:
            waiting = f", {len(self._leaving)} of them until the last request that uses it ends" * bool(self._leaving)
            raise AdapterError(
                f"all {self.slots} adapter slots are taken{waiting}", hint="unload one, or start with more max_adapters"
            )
        fill(self._free[-1])
        self._loads += 1
        adapter = Adapter(name, self._free.pop(), self._loads.to_bytes(8, "little"))
        self._loaded[name] = adapter
        self.names = tuple(self._loaded)
        return adapter

    def unload(self, name: str) -> None:
        """Refuse the name from now on; its slot is free once nobody holds it. AdapterError when it is not loaded."""
        adapter = self.find(name)
        del self._loaded[name]
        self.names = tuple(self._loaded)
        adapter.leaving = True
        self._leaving.append(adapter)
        self._free_if_unused(adapter)

    def find(self, name: str) -> Adapter:
        """The loaded adapter of that name; AdapterError when there is none."""
        if name not in self._loaded:
            known = ", ".join(self.names) or "none"
            raise AdapterError(f"there is no adapter named {name!r}", hint=f"loaded: {known}", unknown=True)
        return self._loaded[name]

    def hold(self, adapter: Adapter) -> None:
        """One more sequence uses it."""
        assert not adapter.leaving, "an adapter that is being unloaded takes no new sequences"
        adapter.refs += 1

    def release(self, adapter: Adapter) -> None:
        """A sequence that held it is gone, and so is every step in flight with a row of it."""
        assert adapter.refs > 0, f"{adapter} is released twice"
        adapter.refs -= 1
        self._free_if_unused(adapter)

    def check_integrity(self, held: Iterable[Adapter | None]) -> None:
        """AssertionError unless each slot is free or taken once, and refs are the live sequences in `held`."""
        users = [adapter for adapter in held if adapter is not None]
        known = [*self._loaded.values(), *self._leaving]
        slots = sorted([*self._free, *(adapter.slot for adapter in known)])
        assert slots == list(range(1, self.slots + 1)), "an adapter slot is lost or taken twice"
        assert {id(adapter) for adapter in users} <= {id(adapter) for adapter in known}, "a freed adapter is in use"
        for adapter in known:
            assert adapter.refs == users.count(adapter), f"{adapter} has wrong references"
        assert all(adapter.leaving and adapter.refs for adapter in self._leaving), "an unused adapter keeps its slot"
        assert self.names == tuple(self._loaded), "the names told differ from those loaded"

    def _free_if_unused(self, adapter: Adapter) -> None:
        if adapter.leaving and adapter.refs == 0:
            self._leaving.remove(adapter)
            self._free.append(adapter.slot)
