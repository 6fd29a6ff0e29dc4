"""What every command needs: reading inputs, writing lines, and ending without a traceback."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Exit codes
SOME_INVALID, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

TOKEN_OF_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+')


def one_line(json_text: str) -> str:
    """JSON without the whitespace between its tokens: one line, every number as it was spelled."""
    return TOKEN_OF_JSON.sub(lambda match: match[0] if match[0].startswith('"') else "", json_text)


def fail(message: str, hint: str = "", *, code: int = USAGE) -> NoReturn:
    """One line for what is wrong, one for what to do."""
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(code)


def note(text: str) -> None:
    """Progress and summaries: never on stdout."""
    print(text, file=sys.stderr)


def print_piece(text: str) -> None:
    """A part of a result, at once, in UTF-8 whatever the terminal's locale."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def print_line(text: str) -> None:
    print_piece(text + "\n")


def read_bytes(name: str) -> bytes:
    """The bytes of a file, or of stdin for `-`; ends the program when it cannot be read."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        fail(
            f"cannot read {name}: {error.strerror or error}",
            hint="check the path and its permissions; - is standard input",
        )


def read_text(name: str) -> str:
    """A document in UTF-8 (with or without a byte order mark)."""
    try:
        return read_bytes(name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fail(f"{name} is not UTF-8: byte {error.start}", f"iconv -t UTF-8 {name} converts it")


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose expected errors end in one or two lines and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            note("interrupted")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            _close_stdout()
            sys.exit(BROKEN_PIPE)
        except Exception as error:
            if (told := _told(error)) is None:
                raise
            fail(*told)

    return run


def _told(error: Exception) -> tuple[str, str] | None:
    """Message and hint of an error that the user can do something about; None for our own bugs."""
    from structgen.errors import GrammarError, StructgenError

    if isinstance(error, GrammarError):
        return str(error), error.hint
    if isinstance(error, StructgenError):
        return error.message, error.hint
    engine: Any = sys.modules.get("structgen.engine")
    if engine is not None and isinstance(error, engine.EngineError):
        return error.message, error.hint
    return None


def _close_stdout() -> None:
    """The reader has left: nothing more may be written, not even by the interpreter's last flush."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
