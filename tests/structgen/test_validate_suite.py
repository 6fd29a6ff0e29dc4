"""The official JSON Schema test suite: required and optional tests of five drafts, as a ratchet."""

from __future__ import annotations

import json
import os
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from referencing import Registry, Resource
from referencing.jsonschema import specification_with

from structgen.validate import FormatPolicy, Validator

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema",
    "draft6": "http://json-schema.org/draft-06/schema",
    "draft7": "http://json-schema.org/draft-07/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("STRUCTGEN_DATA", ROOT.parent / "shared" / "data"))
ARCHIVE = DATA / "json-schema-test-suite.tar.gz"
OTHER_DRAFTS = ("remotes/v1/", "remotes/draft3/", "remotes/draft-next/")


@pytest.fixture(scope="module")
def suite() -> dict[str, Any]:
    """Path in the archive -> parsed JSON."""
    if not ARCHIVE.exists():
        pytest.skip(f"the JSON Schema test suite is not there ({ARCHIVE.name}; STRUCTGEN_DATA names its folder)")
    with tarfile.open(ARCHIVE) as archive:
        members = [member for member in archive if member.name.endswith(".json")]
        return {member.name: json.load(file) for member in members if (file := archive.extractfile(member))}


def failures(suite: dict[str, Any], draft: str) -> Iterator[str]:
    specification = specification_with(DRAFTS[draft])
    remotes: Registry[Any] = Registry().with_resources(
        (
            path.replace("remotes/", "http://localhost:1234/", 1),
            Resource.from_contents(contents, default_specification=specification),
        )
        for path, contents in suite.items()
        if path.startswith("remotes/") and not path.startswith(OTHER_DRAFTS)
    )
    for path, groups in suite.items():
        if not path.startswith(f"tests/{draft}/"):
            continue
        # These tests ask that `format` is only an annotation, which is our other policy.
        policy: FormatPolicy = "annotate" if path == f"tests/{draft}/format.json" else "assert"
        for group in groups:
            validator = Validator(group["schema"], registry=remotes, format=policy, default_dialect=DRAFTS[draft])
            for test in group["tests"]:
                if (validator.errors_in_value(test["data"]) == []) is not test["valid"]:
                    yield f"{path.removeprefix('tests/')} :: {group['description']} :: {test['description']}"


@pytest.mark.parametrize("draft", DRAFTS)
def test_official_suite(suite: dict[str, Any], draft: str) -> None:
    ratchet = tomllib.loads((ROOT / "tests" / "data" / "validator_suite.toml").read_text(encoding="utf-8"))
    known = {name for name in ratchet["known_failures"] if name.startswith(f"{draft}/")}
    assert set(failures(suite, draft)) == known
