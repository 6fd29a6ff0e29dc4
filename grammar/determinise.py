"""From regexes to deterministic character automata: subset construction, with assertions."""

from __future__ import annotations

from typing import Literal

from structgen.grammar.char_dfa import MAX_WORK, CharDFA, explore, minimised, refuse_many, trimmed
from structgen.grammar.char_nfa import CharNFA, char_nfa
from structgen.grammar.charset import WORD, bits, intersect, split
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.regex_tree import Node

# What an assertion that was passed demands of the next character.
Promise = Literal["any", "word", "not word", "end"]
State = tuple[str, frozenset[tuple[int, Promise]]]


def char_dfa(root: Node) -> CharDFA:
    """The automaton of a syntax tree, assertions included (the whole text is matched)."""
    return determinised(char_nfa(root))


def determinised(nfa: CharNFA) -> CharDFA:
    """Subset construction."""
    return _with_assertions(nfa) if nfa.has_assertions else _without_assertions(nfa)


def _without_assertions(nfa: CharNFA) -> CharDFA:
    """Sets of states are integers, one bit a state; a row of the table is filled by one look at each of its states."""
    classes, members = split(chars for edges in nfa.chars for chars, _ in edges)
    closures = _closures(nfa)
    edges = [[(members[chars], closures[target]) for chars, target in edges] for edges in nfa.chars]
    nothing = [0] * len(classes)
    start = closures[0]
    numbers, order = {0: -1, start: 0}, [start]
    rows: list[tuple[int, ...]] = []
    work = 0
    while len(rows) < len(order):
        row = nothing.copy()
        for state in bits(order[len(rows)]):
            for parts, reached in edges[state]:
                work += len(parts)
                for part in parts:
                    row[part] |= reached
        for reached in row:
            if reached not in numbers:
                numbers[reached] = len(order)
                order.append(reached)
        rows.append(tuple([numbers[reached] for reached in row]))
        if work > MAX_WORK:
            raise _too_ambiguous()
        refuse_many(len(order), len(classes))
    accepting = frozenset(number for number, state in enumerate(order) if state & 2)
    return minimised(trimmed(CharDFA(tuple(classes), tuple(rows), accepting)))


def _too_ambiguous() -> GrammarLimitError:
    return GrammarLimitError(
        "the pattern has too many ways to be read at once", hint="make alternatives start differently"
    )


def _closures(nfa: CharNFA) -> dict[int, int]:
    """For the start and each target of a character: the states reached without one that read or accept, as bits."""
    closures: dict[int, int] = {}
    # From the back, since most steps lead to states that were made later: their closures are then known.
    for state in sorted({0, *(target for edges in nfa.chars for _, target in edges)}, reverse=True):
        reached, seen, todo = 0, {state}, [state]
        while todo:
            one = todo.pop()
            known = closures.get(one)
            if known is not None:
                reached |= known
                continue
            if one == 1 or nfa.chars[one]:
                reached |= 1 << one
            for target in nfa.epsilon[one]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        closures[state] = reached
    return closures


def _with_assertions(nfa: CharNFA) -> CharDFA:
    """A state also knows what came before it, for the assertions."""
    classes, members = split([*(chars for edges in nfa.chars for chars, _ in edges), WORD])
    is_word = [bool(intersect(part, WORD)) for part in classes]
    holds = {chars: frozenset(parts) for chars, parts in members.items()}
    work = 0

    def step(state: State, index: int) -> State | None:
        nonlocal work
        work += len(state[1])
        if work > MAX_WORK:
            raise _too_ambiguous()
        kind: Promise = "word" if is_word[index] else "not word"
        moved = {
            target
            for source, promise in state[1]
            if promise in ("any", kind)
            for chars, target in nfa.chars[source]
            if index in holds[chars]
        }
        return (kind, _closure(nfa, moved, kind)) if moved else None

    start: State = ("start", _closure(nfa, {0}, "start"))
    return explore(start, tuple(classes), step, lambda s: any(n == 1 and promise != "word" for n, promise in s[1]))


def _closure(nfa: CharNFA, states: set[int], before: str) -> frozenset[tuple[int, Promise]]:
    seen: set[tuple[int, Promise]] = {(state, "any") for state in states}
    todo = list(seen)
    while todo:
        state, promise = todo.pop()
        reached = [(target, promise) for target in nfa.epsilon[state]]
        for kind, target in nfa.asserts[state]:
            kept = _assert(kind, before, promise)
            if kept is not None:
                reached.append((target, kept))
        for pair in reached:
            if pair not in seen:
                seen.add(pair)
                todo.append(pair)
    return frozenset(pair for pair in seen if pair[0] == 1 or nfa.chars[pair[0]])


def _assert(kind: str, before: str, promise: Promise) -> Promise | None:
    """The promise after passing an assertion; None where it fails."""
    if kind == "start":
        return promise if before == "start" else None
    if kind == "end":
        return "end" if promise != "word" else None
    wanted_word = (before != "word") == (kind == "word")
    if wanted_word:
        return "word" if promise in ("any", "word") else None
    if promise == "word":
        return None
    return "end" if promise == "end" else "not word"
