"""What doubles when written out compiles, or is told to be too much. How long it takes is the bench's matter."""

from __future__ import annotations

import pytest

from structgen.grammar import (
    Grammar,
    GrammarError,
    GrammarLimitError,
    UnsupportedSchemaError,
    Vocabulary,
    bench_blowups,
)


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("name", bench_blowups.BLOWUPS)
def test_it_compiles_or_is_refused(name: str, order: str, bytes_only: Vocabulary) -> None:
    refusal: GrammarError | None = None
    try:
        compiled = Grammar.from_json_schema(bench_blowups.BLOWUPS[name](), property_order=order).compile(bytes_only)
        assert compiled.matcher().min_tokens_to_complete >= 1
    except (GrammarLimitError, UnsupportedSchemaError) as error:
        refusal = error
    assert refusal is None or refusal.pointer is not None


def test_the_bench_measures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: bench_blowups.BLOWUPS[name] for name in ("60 optional members", "anyOf doubling with tags")}
    monkeypatch.setattr(bench_blowups, "BLOWUPS", few)
    monkeypatch.setattr(bench_blowups, "_apart", bench_blowups.measure)
    result = bench_blowups.run_blowups()
    outcomes = [one["outcome"] for one in result["blowups"].values()]
    assert outcomes == ["compiled", "compiled", "GrammarLimitError", "GrammarLimitError"]
    assert capsys.readouterr().out.count("\n") == 4
