"""From regexes to deterministic character automata: subset construction, with assertions."""

from __future__ import annotations

from typing import Literal

from structgen.grammar.char_dfa import MAX_WORK, CharDFA, explore
from structgen.grammar.char_nfa import CharNFA, char_nfa
from structgen.grammar.charset import ANY, WORD, intersect, partition
from structgen.grammar.errors import GrammarLimitError
from structgen.grammar.regex_tree import Node

# What an assertion that was passed demands of the next character.
Promise = Literal["any", "word", "not word", "end"]
State = tuple[str, frozenset[tuple[int, Promise]]]


def char_dfa(root: Node) -> CharDFA:
    """The automaton of a syntax tree, assertions included (the whole text is matched)."""
    return determinised(char_nfa(root))


def determinised(nfa: CharNFA) -> CharDFA:
    """Subset construction; a state also knows what came before it, for the assertions."""
    sets = [chars for edges in nfa.chars for chars, _ in edges]
    classes = tuple(partition([*sets, WORD] if nfa.has_assertions else sets)) or (ANY,)
    is_word = [bool(intersect(part, WORD)) for part in classes]
    members = {chars: [bool(intersect(part, chars)) for part in classes] for chars in set(sets)}

    work = 0

    def step(state: State, index: int) -> State | None:
        nonlocal work
        work += len(state[1])
        if work > MAX_WORK:
            raise GrammarLimitError(
                "the pattern has too many ways to be read at once", hint="make alternatives start differently"
            )
        kind: Promise = "word" if is_word[index] else "not word"
        moved = {
            target
            for source, promise in state[1]
            if promise in ("any", kind)
            for chars, target in nfa.chars[source]
            if members[chars][index]
        }
        if not moved:
            return None
        before = kind if nfa.has_assertions else "any"
        return before, _closure(nfa, moved, before)

    start: State = ("start", _closure(nfa, {0}, "start"))
    return explore(start, classes, step, lambda s: any(n == 1 and promise != "word" for n, promise in s[1]))


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
