"""How many words a character automaton has, and whether they can run out."""

from __future__ import annotations

from structgen.grammar.char_dfa import CharDFA, topological_order


def count_words(dfa: CharDFA) -> int | None:
    """How many words there are; None for infinitely many."""
    order = topological_order(dfa.rows)
    if order is None:
        return None
    sizes = [sum(high - low + 1 for low, high in chars) for chars in dfa.classes]
    counts = [int(state in dfa.accepting) for state in range(len(dfa.rows))]
    for state in reversed(order):
        counts[state] += sum(sizes[i] * counts[target] for i, target in enumerate(dfa.rows[state]) if target >= 0)
    return counts[0] if counts else 0


def can_run_out(dfa: CharDFA) -> bool:
    """Whether some beginning of a word has only finitely many ends, which could all have been used."""
    # A state without successors ends in a finite set; without one, every state leads into a circle.
    return any(all(target < 0 for target in row) for row in dfa.rows)
