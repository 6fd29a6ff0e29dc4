"""Our regex trees in the syntax of Rust's regex crate, which outlines-core builds its automaton from.

The dialects differ in what `.`, `\\d`, `\\s` and case mean, so a pattern is parsed here and written out anew: sets of
characters as ranges of code points, everything else with groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from structgen.grammar.charset import CharSet, charset, subtract, union
from structgen.grammar.errors import GrammarLimitError, UnsatisfiableError, UnsupportedSchemaError
from structgen.grammar.regex_program import without_end_assertions
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.regex_tree import Alt, Chars, Concat, Empty, Node, Repeat

ASCII: CharSet = ((0x00, 0x7F),)
MAX_UNROLLED = 10_000  # characters of a pattern with its counts written out: the index takes a second for as many


def rust_pattern_of_choices(texts: Iterable[str]) -> tuple[str, str]:
    """A pattern with a sentinel behind it, and the sentinel: an ASCII character that no text has."""
    written = "(?:" + "|".join("".join(map(_literal, text)) for text in texts) + ")"
    return _with_sentinel(written, [charset((ord(char), ord(char)) for text in texts for char in text)])


def rust_pattern_of_regex(pattern: str) -> tuple[str, str]:
    """The same language, with a sentinel behind it, and the sentinel: an ASCII character that the pattern never reads.

    Raises:
        GrammarSyntaxError: the pattern does not parse.
        UnsupportedSchemaError: it has assertions inside, or reads every ASCII character.
        GrammarLimitError: its counts multiply too far.
        UnsatisfiableError: it matches nothing.
    """
    used: list[CharSet] = []
    written = _written(without_end_assertions(parse_regex(pattern), search=False), used)
    if written is None:
        raise UnsatisfiableError("nothing matches this pattern", position=0)
    return _with_sentinel(f"(?:{written})", used)


def _with_sentinel(written: str, used: list[CharSet]) -> tuple[str, str]:
    free = subtract(ASCII, union(*used)) if used else ASCII
    if not free:
        raise UnsupportedSchemaError(
            "the backend outlines-core needs one ASCII character that the pattern never reads",
            hint="use the default backend",
        )
    sentinel = chr(free[0][0])
    return written + _literal(sentinel), sentinel


def _literal(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


def _set(chars: CharSet) -> str | None:
    if not chars:
        return None
    return "[" + "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in chars) + "]"


def _written(root: Node, used: list[CharSet]) -> str | None:
    """None for a tree that matches nothing: such parts are left out, since the index stumbles over them.

    The character sets of the tree are added to `used`.
    """
    # Post-order with an explicit stack: patterns nest deeper than Python's stack.
    done: dict[int, str | None] = {}
    sizes: dict[int, int] = {}
    todo: list[tuple[Node, bool]] = [(root, False)]
    while todo:
        node, ready = todo.pop()
        if not ready and isinstance(node, Concat | Alt | Repeat):
            children = (
                node.items if isinstance(node, Concat) else node.options if isinstance(node, Alt) else (node.item,)
            )
            todo.append((node, True))
            todo += [(child, False) for child in children]
        else:
            done[id(node)] = _one(node, done)
            sizes[id(node)] = _unrolled(node, sizes)
            if isinstance(node, Chars):
                used.append(node.chars)
    return done[id(root)]


def _unrolled(node: Node, sizes: dict[int, int]) -> int:
    """Characters of a part with its counts written out, which is what the index does."""
    size = 1
    if isinstance(node, Concat | Alt):
        size = sum(sizes[id(child)] for child in (node.items if isinstance(node, Concat) else node.options))
    elif isinstance(node, Repeat):
        size = sizes[id(node.item)] * max(1, node.least + 1 if node.most is None else node.most)
    if size > MAX_UNROLLED:
        raise GrammarLimitError(
            f"the backend outlines-core writes counts out: more than {MAX_UNROLLED:,} characters",
            hint="use the default backend",
        )
    return size


def _one(node: Node, done: dict[int, str | None]) -> str | None:
    if isinstance(node, Empty):
        return "(?:)"
    if isinstance(node, Chars):
        return _set(node.chars)
    if isinstance(node, Concat):
        parts = [done[id(item)] for item in node.items]
        return None if None in parts else "".join(part for part in parts if part is not None)
    if isinstance(node, Alt):
        options = [part for option in node.options if (part := done[id(option)]) is not None]
        return "(?:" + "|".join(options) + ")" if options else None
    if isinstance(node, Repeat):
        item = done[id(node.item)]
        if item is None:
            return "(?:)" if node.least == 0 else None
        return f"(?:{item}){{{node.least},{'' if node.most is None else node.most}}}"
    raise UnsupportedSchemaError(
        "the backend outlines-core takes no assertions inside a pattern", hint="use the default backend"
    )
