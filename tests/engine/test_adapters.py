"""AdapterRegistry: names, slots and references, without a model."""

from __future__ import annotations

import random

import pytest

from structgen.engine.adapters import Adapter, AdapterRegistry
from structgen.engine.errors import AdapterError


def nothing(slot: int) -> None:
    pass


def test_a_slot_is_free_again_when_the_last_holder_is_gone() -> None:
    registry = AdapterRegistry(1)
    first = registry.load("a", nothing)
    registry.hold(first)
    registry.hold(first)
    registry.unload("a")
    assert registry.names == ()
    with pytest.raises(AdapterError, match="slots are taken, 1 of them until"):
        registry.load("b", nothing)
    registry.release(first)
    registry.check_integrity([first])
    with pytest.raises(AdapterError, match="slots are taken"):
        registry.load("b", nothing)
    registry.release(first)
    second = registry.load("b", nothing)
    assert second.slot == first.slot
    assert registry.find("b") is second


def test_the_same_name_again_is_another_adapter() -> None:
    registry = AdapterRegistry(2)
    first = registry.load("a", nothing)
    registry.hold(first)
    registry.unload("a")
    second = registry.load("a", nothing)
    assert second.slot != first.slot
    assert second.page_seed != first.page_seed
    assert registry.find("a") is second
    registry.check_integrity([first])


def test_a_load_that_fails_takes_nothing() -> None:
    registry = AdapterRegistry(1)

    def fail(slot: int) -> None:
        raise MemoryError("too large")

    with pytest.raises(MemoryError):
        registry.load("a", fail)
    registry.check_integrity([])
    assert registry.load("a", nothing).slot == 1


@pytest.mark.parametrize("name", ["", "x" * 257, "two\nlines"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(AdapterError, match="not an adapter's name"):
        AdapterRegistry(1).load(name, nothing)


def test_unknown_and_taken_names_are_told() -> None:
    registry = AdapterRegistry(2)
    registry.load("a", nothing)
    with pytest.raises(AdapterError, match="loaded already"):
        registry.load("a", nothing)
    with pytest.raises(AdapterError, match="no adapter named 'b'") as caught:
        registry.find("b")
    assert (caught.value.hint, caught.value.unknown) == ("loaded: a", True)
    with pytest.raises(AdapterError, match="no adapter named 'b'"):
        registry.unload("b")


@pytest.mark.parametrize("seed", range(3))
def test_random_loads_holds_and_unloads_keep_the_account(seed: int) -> None:
    rng = random.Random(seed)
    registry = AdapterRegistry(3)
    held: list[Adapter] = []
    for _ in range(400):
        name = rng.choice("abcd")
        try:
            match rng.choice(["load", "unload", "hold", "release"]):
                case "load":
                    registry.load(name, nothing)
                case "unload":
                    registry.unload(name)
                case "hold":
                    adapter = registry.find(name)
                    registry.hold(adapter)
                    held.append(adapter)
                case _ if held:
                    registry.release(held.pop(rng.randrange(len(held))))
        except AdapterError:
            pass
        registry.check_integrity(held)
