"""A sample of MaskBench's development half, when it lies beside the checkout: no wrong answer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from structgen.grammar import Grammar, GrammarError, Vocabulary

DATA = Path(__file__).parents[3] / "shared" / "data" / "maskbench-dev.jsonl.gz"
EVERY = 40


def sample() -> list[dict[str, Any]]:
    with gzip.open(DATA, "rt") as lines:
        return [json.loads(line) for index, line in enumerate(lines) if index % EVERY == 0]


@pytest.mark.skipif(not DATA.exists(), reason="MaskBench is not beside this checkout (shared/data)")
def test_sample(bytes_only: Vocabulary) -> None:
    compiled_count, wrong = 0, []
    for one in sample():
        try:
            compiled = Grammar.from_json_schema(one["schema"], property_order="any").compile(bytes_only)
        except GrammarError as error:
            if error.code == "unsatisfiable_schema" and any(test["valid"] for test in one["tests"]):
                wrong.append((one["id"], str(error)))
            continue
        compiled_count += 1
        for test in one["tests"]:
            matcher = compiled.matcher()
            text = json.dumps(test["data"], ensure_ascii=False)
            if (matcher.accept_string(text) and matcher.is_complete) != test["valid"]:
                wrong.append((one["id"], text[:200]))
    assert not wrong
    assert compiled_count > 50
