"""The validator as a process of its own, for schemas from strangers: whatever they make it do, it can be killed.

A pattern may backtrack for hours, and doubling references may too; neither gives the interpreter lock away. Requests
come in on stdin and answers go out on stdout, each a length (4 bytes, big endian) and a JSON object:

    {"schema": text, "format": "assert"|"annotate", "text": text|null}  ->  {"issues": [ValidationIssue as list ...]}
    {"pattern": text, "text": text|null}                                ->  {"issues": ...}
    a schema that is not valid                                          ->  {"error": {kind, message, pointer, hint}}

`text` null asks about the schema or pattern only. End of stdin ends the process.
"""

from __future__ import annotations

import json
import struct
import sys
from functools import lru_cache
from typing import Any, BinaryIO

from structgen.grammar.errors import GrammarError
from structgen.validate import FormatPolicy, Validator
from structgen.validation.patterns import PatternError, compile_pattern

LENGTH = struct.Struct(">I")
MOST_ISSUES = 100
MEMORY = 2 << 30  # bytes of address space


@lru_cache(maxsize=64)
def _validator(schema: str, policy: FormatPolicy) -> Validator:
    return Validator(schema.encode(), format=policy)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    try:
        if "pattern" in request:
            return {"issues": _pattern_issues(request["pattern"], request["text"])}
        validator = _validator(request["schema"], request["format"])
        issues = [] if request["text"] is None else validator.errors_in_text(request["text"])
        return {"issues": [list(issue) for issue in issues[:MOST_ISSUES]]}
    except GrammarError as error:
        reason = {"message": error.message, "pointer": error.pointer, "hint": error.hint}
        return {"error": {"kind": type(error).__name__, **reason}}


def _pattern_issues(pattern: str, text: str | None) -> list[list[str]]:
    try:
        whole = compile_pattern(f"^(?:{pattern})$")
    except PatternError:  # syntax that the grammar understands and ECMA-262 does not
        return []
    if text is None or whole.find(text) is not None:
        return []
    return [["", "the text does not match the pattern", ""]]


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until the source ends."""
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        request = json.loads(source.read(LENGTH.unpack(head)[0]))
        out = json.dumps(answer(request)).encode()
        sink.write(LENGTH.pack(len(out)) + out)
        sink.flush()


def main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # not on this system, or a lower limit is set already
        pass
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
