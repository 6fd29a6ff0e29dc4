"""The numbers of `Op`, `Interior` and `TextField` as plain constants, which compiled functions need."""

from __future__ import annotations

from structgen.grammar.program import KEY_DETOUR, Interior, LimitField, Op, TextField

BYTE, RANGES, SPLIT, CALL = int(Op.BYTE), int(Op.RANGES), int(Op.SPLIT), int(Op.CALL)
RETURN, LOOP, OBJECT, CHOOSE, CLOSE = int(Op.RETURN), int(Op.LOOP), int(Op.OBJECT), int(Op.CHOOSE), int(Op.CLOSE)
EXCEPT, TEXT, KEY_END, RESERVE = int(Op.EXCEPT), int(Op.TEXT), int(Op.KEY_END), int(Op.RESERVE)

FREE, COUNTED = int(Interior.FREE), int(Interior.COUNTED)
KEY, CANONICAL, BLANK = int(Interior.KEY), int(Interior.CANONICAL), int(Interior.BLANK)

EXIT, LEAST, MOST, WIDTH = int(TextField.EXIT), int(TextField.LEAST), int(TextField.MOST), int(TextField.WIDTH)
LENGTHS, PERIOD, TARGETS = int(TextField.LENGTHS), int(TextField.PERIOD), int(TextField.TARGETS)
FIRST = int(TextField.FIRST)

LEAST_MEMBERS, MOST_MEMBERS = int(LimitField.LEAST_MEMBERS), int(LimitField.MOST_MEMBERS)
FILLERS, FIRST_FILLER = int(LimitField.FILLERS), int(LimitField.FIRST_FILLER)

# The count of a frame that a CALL pushed: where it returns to may itself be a LOOP or an OBJECT.
CALLED = -2

DETOUR = KEY_DETOUR
