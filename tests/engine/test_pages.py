"""PageAllocator: ownership, sharing, eviction; random histories keep its invariants."""

from __future__ import annotations

import random

import pytest

from structgen.engine.pages import PageAllocator, page_keys


def test_pages_are_taken_shared_and_given_back() -> None:
    pages = PageAllocator(4, 2)
    first = pages.take(2)
    keys = page_keys([1, 2, 3, 4], 2, [])
    for page, key in zip(first, keys, strict=True):
        pages.register(page, key)
    assert pages.share(keys) == first
    pages.check_integrity([first, first])
    pages.release(first)
    pages.release(first)
    assert pages.available == 4
    assert pages.share(keys) == first, "a known prefix outlives its owner"
    pages.check_integrity([first])


def test_a_key_names_a_whole_prefix() -> None:
    assert page_keys([1, 2, 3, 4], 2, [])[1] != page_keys([9, 9, 3, 4], 2, [])[1]
    assert page_keys([1, 2, 3, 4, 5], 2, []) == page_keys([1, 2, 3, 4], 2, [])
    assert page_keys([1, 2, 3, 4], 2, page_keys([1, 2], 2, [])) == page_keys([1, 2, 3, 4], 2, [])


def test_cached_pages_are_given_up_when_pages_run_short_the_end_of_a_prefix_first() -> None:
    pages = PageAllocator(3, 1)
    taken = pages.take(3)
    keys = page_keys([7, 8, 9], 1, [])
    for page, key in zip(taken, keys, strict=True):
        pages.register(page, key)
    pages.release(taken)
    fresh = pages.take(1)
    assert fresh == taken[2:]
    assert pages.share(keys) == taken[:2]


def test_the_number_of_cached_pages_is_bounded() -> None:
    pages = PageAllocator(4, 1, max_cached=1)
    taken = pages.take(3)
    keys = page_keys([7, 8, 9], 1, [])
    for page, key in zip(taken, keys, strict=True):
        pages.register(page, key)
    pages.release(taken)
    assert pages.share(keys) == taken[:1]
    pages.check_integrity([taken[:1]])


def test_a_double_release_and_a_lost_page_are_found() -> None:
    pages = PageAllocator(3, 4)
    taken = pages.take(2)
    with pytest.raises(AssertionError, match="reference counts"):
        pages.check_integrity([taken[:1]])
    pages.release(taken)
    with pytest.raises(AssertionError, match="released twice"):
        pages.release(taken)


@pytest.mark.parametrize("seed", range(5))
def test_random_histories_keep_the_invariants(seed: int) -> None:
    rng = random.Random(seed)
    pages = PageAllocator(12, 2, max_cached=5)
    tables: list[list[int]] = []
    for _ in range(400):
        if rng.random() < 0.5 and pages.available >= 4:
            tokens = [rng.randrange(2) for _ in range(6)]
            keys = page_keys(tokens, 2, [])
            table = pages.share(keys)
            table += pages.take(min(3 - len(table), pages.available))
            for page, key in zip(table, keys, strict=False):
                pages.register(page, key)
            tables.append(table)
        elif tables:
            pages.release(tables.pop(rng.randrange(len(tables))))
        pages.check_integrity(tables)
