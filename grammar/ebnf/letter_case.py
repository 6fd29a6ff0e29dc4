"""Letters in upper and lower case, for literals and regexes that ignore it.

A letter stands for itself, its upper and its lower case where those are single characters. Characters that only
older texts fold together (ſ and s, the Kelvin sign and k) stay apart: nobody wants `ſELECT` generated.
"""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.charset import CharSet, charset, intersect, negate, union
from structgen.grammar.regex_tree import Alt, Chars, Concat, Look, Node, Repeat, alt, concat, repeat

_LAST_CASED = 0x1E943
_HALF = 0x80000


def variants(char: str) -> str:
    """The character, and it in other case."""
    return "".join({char, *(one for one in (char.lower(), char.upper()) if len(one) == 1)})


@lru_cache(maxsize=1)
def _cased() -> tuple[CharSet, dict[int, str]]:
    """All characters that have variants, and these."""
    found: dict[int, str] = {}
    for code in range(_LAST_CASED + 1):
        char = chr(code)
        if char.lower() != char or char.upper() != char:
            found[code] = variants(char)
    return charset((code, code) for code in found), found


def in_any_case(chars: CharSet) -> CharSet:
    """A set with all variants of its characters.

    A set of nearly everything was written as a complement, and what is left out of it is left out in every case.
    """
    if sum(high - low + 1 for low, high in chars) > _HALF:
        return negate(in_any_case(negate(chars)))
    cased, table = _cased()
    others = [
        (ord(one), ord(one))
        for low, high in intersect(chars, cased)
        for code in range(low, high + 1)
        for one in table[code]
    ]
    return union(chars, charset(others))


def tree_in_any_case(root: Node) -> Node:
    """A regex that ignores case."""
    todo: list[tuple[Node, bool]] = [(root, False)]
    done: list[Node] = []
    while todo:
        node, ready = todo.pop()
        if isinstance(node, Chars):
            done.append(Chars(in_any_case(node.chars)))
        elif isinstance(node, Concat | Alt | Repeat | Look) and not ready:
            todo.append((node, True))
            todo += [(item, False) for item in reversed(_items(node))]
        elif isinstance(node, Repeat):
            done.append(repeat(done.pop(), node.least, node.most))
        elif isinstance(node, Look):
            done.append(Look(done.pop(), node.negative, node.position))
        elif isinstance(node, Concat | Alt):
            items = done[-len(_items(node)) :]
            del done[-len(items) :]
            done.append(concat(items) if isinstance(node, Concat) else alt(items))
        else:
            done.append(node)
    return done[0]


def _items(node: Concat | Alt | Repeat | Look) -> tuple[Node, ...]:
    if isinstance(node, Repeat | Look):
        return (node.item,)
    return node.items if isinstance(node, Concat) else node.options
