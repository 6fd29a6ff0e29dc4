"""The official JSON Schema test suite: required and optional tests of five drafts, as a ratchet."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from referencing import Registry, Resource
from referencing.jsonschema import specification_with

from structgen.validate import FormatPolicy, Validator

RATCHET = Path(__file__).parents[1] / "data" / "validator_suite.toml"


def failures(suite: Any, draft: str, uri: str) -> Iterator[str]:
    specification = specification_with(uri)
    remotes: Registry[Any] = Registry().with_resources(
        (name, Resource.from_contents(contents, default_specification=specification))
        for name, contents in suite.remotes().items()
    )
    for path, group in suite.groups(draft):
        # These tests ask that `format` is only an annotation, which is our other policy.
        policy: FormatPolicy = "annotate" if path == f"{draft}/format.json" else "assert"
        validator = Validator(group["schema"], registry=remotes, format=policy, default_dialect=uri)
        for test in group["tests"]:
            if (validator.errors_in_value(test["data"]) == []) is not test["valid"]:
                yield f"{path} :: {group['description']} :: {test['description']}"


def test_official_suite(official_suite: Any, draft: tuple[str, str]) -> None:
    ratchet = tomllib.loads(RATCHET.read_text(encoding="utf-8"))
    known = {name for name in ratchet["known_failures"] if name.startswith(f"{draft[0]}/")}
    assert set(failures(official_suite, *draft)) == known
