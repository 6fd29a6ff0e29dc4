"""PageAllocator: who owns which page of the KV cache. Plain Python, so that its invariants are tested without a model.

free     refs = 0, content worthless
cached   refs = 0, content is a known prefix: kept until a free page is wanted and none is left (oldest first)
owned    refs = the number of sequences whose page table names it
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np


class PageAllocator:
    """Counts references to `pages` pages of `page_size` tokens; full pages may be found again by their tokens.

    A page's key digests its tokens and the key of the page before it, so one key names a whole prefix.
    `max_cached` bounds the unowned pages that are kept, so that memory grows with use, not with time.
    """

    def __init__(self, pages: int, page_size: int, *, max_cached: int | None = None) -> None:
        self.pages, self.page_size = pages, page_size
        self._max_cached = pages if max_cached is None else max_cached
        self._refs = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # a stack: low pages first, so that few pages are ever touched
        self._cached: OrderedDict[int, bytes] = OrderedDict()  # unowned pages with a key, oldest first
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        return len(self._free) + len(self._cached)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def take(self, count: int) -> list[int]:
        """`count` pages of worthless content, owned once. The caller has checked `available`."""
        assert count <= self.available
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in taken:
            self._refs[page] = 1
        return taken

    def release(self, pages: Iterable[int]) -> None:
        """Give up one reference to each page. Later pages first: a prefix must outlive what builds on it."""
        for page in reversed(list(pages)):
            assert self._refs[page] > 0, f"page {page} is released twice"
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._retire(page)

    def register(self, page: int, key: bytes) -> None:
        """The page's content is final and known by `key`. The first page with a key keeps it."""
        assert self._refs[page] > 0, f"page {page} is nobody's"
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def share(self, keys: Iterable[bytes]) -> list[int]:
        """The longest run of pages known by `keys`, each owned once more."""
        shared = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            self._cached.pop(page, None)
            self._refs[page] += 1
            shared.append(page)
        return shared

    def exclusive(self, pages: Iterable[int]) -> list[int]:
        """Those of `pages` that have one owner and are no known prefix: nobody else will read them."""
        return [page for page in pages if self._refs[page] == 1 and page not in self._key_of]

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """AssertionError unless free + cached + owned = all, without overlap, and refs are what `tables` name."""
        counts = [0] * self.pages
        for table in tables:
            for page in table:
                counts[page] += 1
        assert counts == self._refs, "reference counts differ from the page tables"
        unowned = [*self._free, *self._cached]
        assert len(unowned) == len(set(unowned)), "a page is free twice"
        owned = {page for page, count in enumerate(counts) if count}
        assert owned.isdisjoint(unowned), "a page is free and owned"
        assert len(owned) + len(unowned) == self.pages, "a page is lost"
        assert self._page_of == {key: page for page, key in self._key_of.items()}, "keys and pages disagree"
        assert all(self._key_of[page] == key for page, key in self._cached.items()), "a cached page lost its key"
        assert not self._key_of.keys() & set(self._free), "a free page has a key"

    def _retire(self, page: int) -> None:
        key = self._key_of.get(page)
        if key is None:
            self._free.append(page)
            return
        self._cached[page] = key
        if len(self._cached) > self._max_cached:
            self._free.append(self._evict())

    def _evict(self) -> int:
        page, key = self._cached.popitem(last=False)
        del self._page_of[key], self._key_of[page]
        return page


def page_keys(tokens: list[int], page_size: int, known: list[bytes], seed: bytes = b"") -> list[bytes]:
    """The keys of all full pages of `tokens`; `known` are the first of them, already computed.

    `seed` stands for whatever else the content depends on (an adapter): other seeds, other keys.
    """
    keys = list(known)
    for start in range(len(keys) * page_size, len(tokens) - page_size + 1, page_size):
        page = np.asarray(tokens[start : start + page_size], dtype=np.int64).tobytes()
        keys.append(blake2b(page, key=keys[-1] if keys else seed, digest_size=16).digest())
    return keys
