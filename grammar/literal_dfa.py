"""The automaton of a finite set of texts."""

from __future__ import annotations

from functools import lru_cache

from structgen.grammar.char_dfa import MAX_DFA_STATES, MAX_WORK, CharDFA
from structgen.grammar.charset import ANY, CharSet, charset, subtract
from structgen.grammar.errors import GrammarLimitError


@lru_cache(maxsize=256)
def literal_dfa(words: frozenset[str]) -> CharDFA:
    """Exactly these texts, as a trie."""
    codes = sorted({ord(char) for word in words for char in word})
    index = {code: number for number, code in enumerate(codes)}
    children: list[dict[int, int]] = [{}]
    ends = set()
    for word in sorted(words):
        node = 0
        for char in word:
            following = children[node].get(index[ord(char)])
            if following is None:
                following = children[node][index[ord(char)]] = len(children)
                children.append({})
            node = following
        ends.add(node)
    if len(children) > MAX_DFA_STATES or len(children) * len(codes) > MAX_WORK:
        raise GrammarLimitError("too many values are taken out", hint="use fewer or shorter values")
    classes: list[CharSet] = [((code, code),) for code in codes]
    # Classes are a partition of all characters.
    classes.append(subtract(ANY, charset((code, code) for code in codes)))
    rows = tuple(tuple(edges.get(number, -1) for number in range(len(classes))) for edges in children)
    return CharDFA(tuple(classes), rows, frozenset(ends)) if ends else CharDFA((), (), frozenset())
