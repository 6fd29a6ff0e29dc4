"""Extract a record from every file in examples/documents/ with the schema of the same name, and check each.

    python examples/demo.py [--model MODEL] [--max-tokens N]

Exit code 0 when every record validates.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import structgen
from structgen.progress import count_progress

HERE = Path(__file__).resolve().parent


def load_pairs() -> list[tuple[Path, Path]]:
    """(document, schema), by name."""
    documents = sorted((HERE / "documents").glob("*.txt"))
    return [(document, HERE / "schemas" / f"{document.stem}.json") for document in documents]


def show(document: Path, result: structgen.Result, issues: list[structgen.ValidationIssue]) -> None:
    """One record, and whether it is what its schema asks for."""
    early = ", closed early" if result.closed_early else ""
    verdict = "valid" if not issues else "INVALID"
    print(f"{document.relative_to(HERE.parent)}: {verdict} ({result.usage.completion_tokens} tokens{early})")
    for issue in issues:
        print(f"  {issue}")
    print(json.dumps(json.loads(result.text), ensure_ascii=False) if not issues else result.text)
    print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="known name, .gguf file or Hugging Face folder")
    parser.add_argument("--max-tokens", type=int, default=300)
    arguments = parser.parse_args()

    pairs = load_pairs()
    llm = structgen.LLM(arguments.model)
    start = time.perf_counter()
    requests = [(document.read_text("utf-8"), schema) for document, schema in pairs]
    with count_progress("Extracting", len(pairs)) as advance:
        results = llm.extract_batch(requests, max_tokens=arguments.max_tokens, return_result=True, on_finished=advance)
    seconds = time.perf_counter() - start

    valid = 0
    for (document, schema), result in zip(pairs, results, strict=True):
        issues = structgen.Validator(json.loads(schema.read_text("utf-8"))).errors(result.text)
        show(document, result, issues)
        valid += not issues
    tokens = sum(result.usage.completion_tokens for result in results)
    print(f"{valid} of {len(pairs)} records validate ({tokens} tokens in {seconds:.1f} s, {llm.name}).")
    return 0 if valid == len(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
