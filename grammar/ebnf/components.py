"""Strongly connected components of a graph of names (Tarjan 1972, without recursion)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def components(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """All components, each behind those it leads to. Every target must be a key."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: dict[str, None] = {}  # in the order of discovery
    found: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        path: list[tuple[str, Iterator[str]]] = []
        following: str | None = root
        while following is not None or path:
            if following is not None:
                index[following] = low[following] = len(index)
                open_[following] = None
                path.append((following, iter(graph[following])))
            node, targets = path[-1]
            following = None
            for target in targets:
                if target not in index:
                    following = target
                    break
                if target in open_:
                    low[node] = min(low[node], index[target])
            if following is not None:
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == index[node]:
                found.append(_cut(open_, node))
    return found


def _cut(open_: dict[str, None], node: str) -> list[str]:
    """Take everything from `node` on off the end."""
    component: list[str] = []
    while not component or component[-1] != node:
        component.append(open_.popitem()[0])
    return component
