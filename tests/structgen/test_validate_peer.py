"""Our validator and `jsonschema-rs`, an independent one, on real schemas and their instances."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from structgen.grammar.errors import SchemaError
from structgen.validate import Validator

peer = pytest.importorskip("jsonschema_rs", reason="jsonschema-rs is not installed (it is no dependency)")

DATA = Path(os.environ.get("STRUCTGEN_DATA", Path(__file__).parents[3] / "shared" / "data"))
SCHEMAS = DATA / "maskbench-dev.jsonl.gz"
EVERY = 10


def documents() -> Iterator[dict[str, Any]]:
    with gzip.open(SCHEMAS, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % EVERY == 0:
                yield json.loads(line)


@pytest.mark.skipif(not SCHEMAS.exists(), reason=f"{SCHEMAS.name} is not there (STRUCTGEN_DATA names its folder)")
def test_both_say_the_same() -> None:
    """Formats apart, since the peer knows some of them only in some drafts; they are compared with the labels."""
    checked, different = 0, []
    for document in documents():
        try:
            ours, strict = Validator(document["schema"], format="annotate"), Validator(document["schema"])
        except SchemaError:
            continue
        theirs = peer.validator_for(document["schema"], validate_formats=False, offline=True)
        for test in document["tests"]:
            checked += 1
            value = test["data"]
            agree = (ours.errors_in_value(value) == []) == theirs.is_valid(value)
            if not agree or (strict.errors_in_value(value) == []) != test["valid"]:
                different.append(document["id"])
    assert checked > 1000
    assert different == []
