"""Regexes inside of a grammar."""

from __future__ import annotations

from structgen.grammar.ebnf.expression import Expression, Leaf, Scan
from structgen.grammar.ebnf.letter_case import tree_in_any_case
from structgen.grammar.ebnf.scanner import fault
from structgen.grammar.errors import GrammarLimitError, GrammarSyntaxError
from structgen.grammar.lookahead import language
from structgen.grammar.regex_program import without_end_assertions
from structgen.grammar.regex_syntax import parse_regex
from structgen.grammar.regex_tree import Alt, Concat, Node, Repeat, assertions


def regex_terminal(pattern: str, *, ignore_case: bool = False, text: str = "", position: int = 0) -> Expression:
    """What a pattern matches as a whole; `^`, `$`, `\\b` and lookaheads see its own text only.

    Args:
        text: the grammar, in which the pattern begins at `position`: errors point into it.
    Raises:
        GrammarSyntaxError, GrammarLimitError: with `position` in the grammar.
    """
    try:
        tree = without_end_assertions(parse_regex(pattern), search=False)
        tree = tree_in_any_case(tree) if ignore_case else tree
        return Scan(language(tree)) if assertions(tree) else Leaf(tree, _size(tree))
    except GrammarSyntaxError as error:
        message = error.message.partition("\n")[0]
        raise fault(text, position + (error.position or 0), message, hint=error.hint) from None
    except GrammarLimitError as error:
        place = position + (error.position or 0)
        raise GrammarLimitError(error.message, hint=error.hint, position=place) from None


def _size(root: Node) -> int:
    count, todo = 0, [root]
    while todo:
        node = todo.pop()
        count += 1
        if isinstance(node, Concat):
            todo += node.items
        elif isinstance(node, Alt):
            todo += node.options
        elif isinstance(node, Repeat):
            todo.append(node.item)
    return count
