"""Our regex trees in the syntax of Rust's regex crate, which outlines-core builds its automaton from.

The dialects differ in what `.`, `\\d`, `\\s` and case mean, so a pattern is parsed here and written out anew: sets of
characters as ranges of code points, everything else with groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from structgen.grammar.charset import CharSet
from structgen.grammar.errors import UnsatisfiableError, UnsupportedSchemaError
from structgen.grammar.regex_program import without_end_assertions
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.regex_tree import Alt, Chars, Concat, Empty, Node, Repeat


def rust_pattern_of_choices(texts: Iterable[str]) -> str:
    return "(?:" + "|".join("".join(map(_literal, text)) for text in texts) + ")"


def rust_pattern_of_regex(pattern: str) -> str:
    """The same language, matched as a whole.

    Raises:
        GrammarSyntaxError: the pattern does not parse.
        UnsupportedSchemaError: it has assertions inside. UnsatisfiableError: it matches nothing.
    """
    written = _written(without_end_assertions(parse_regex(pattern), search=False))
    if written is None:
        raise UnsatisfiableError("nothing matches this pattern", position=0)
    return written


def _literal(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


def _set(chars: CharSet) -> str | None:
    if not chars:
        return None
    return "[" + "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in chars) + "]"


def _written(root: Node) -> str | None:
    """None for a tree that matches nothing: such parts are left out, since the index stumbles over them."""
    # Post-order with an explicit stack: patterns nest deeper than Python's stack.
    done: dict[int, str | None] = {}
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
    return done[id(root)]


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
