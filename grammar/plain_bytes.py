"""Single bytes of JSON text that other files ask about."""

from __future__ import annotations

from structgen.grammar.numba_cache import lean_inline

QUOTE, BACKSLASH, SPACE = 0x22, 0x5C, 0x20
BLANKS = b"\t\n\r "


@lean_inline
def is_plain_byte(byte: int) -> bool:
    """A byte of text that a JSON string holds as it is."""
    return byte >= SPACE and byte != QUOTE and byte != BACKSLASH


@lean_inline
def is_blank(byte: int) -> bool:
    """A byte that may stand between the tokens of JSON."""
    return byte == SPACE or byte == 0x0A or byte == 0x09 or byte == 0x0D
