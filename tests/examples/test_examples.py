"""The examples: every document has a schema that can be enforced, and every script runs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from structgen.constraint import to_constraint
from structgen.grammar import Vocabulary
from structgen.models import DEFAULT_MODEL, KNOWN, is_present
from structgen.pydantic_schema import subschemas
from structgen.validate import Validator

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
DOCUMENTS = sorted((EXAMPLES / "documents").glob("*"))
SCHEMAS = sorted((EXAMPLES / "schemas").glob("*"))
BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256])

needs_model = pytest.mark.skipif(
    not is_present(KNOWN[DEFAULT_MODEL]), reason="the default model is not in the cache: structgen models pull"
)


def load(name: str) -> ModuleType:
    """One of the example scripts as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def test_there_are_enough_documents_each_with_a_schema() -> None:
    assert len(DOCUMENTS) >= 8
    assert {document.stem for document in DOCUMENTS} | {"landmark"} == {schema.stem for schema in SCHEMAS}


def test_documents_are_as_people_meet_them() -> None:
    texts = [document.read_text("utf-8") for document in DOCUMENTS]
    together = "\n".join(texts)
    assert all(20 < len(text) < 2000 for text in texts)
    assert all(sign in together for sign in ("€", "£", "CHF", "NOK", "US$"))
    assert all(name in together for name in ("Zoë Lefèvre", "Żółkiewska", "Núñez", "Weißenbach"))
    assert any("   " in text for text in texts)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_schemas_are_valid_and_enforceable(path: Path) -> None:
    schema = read(path)
    assert Validator(schema).errors({"unexpected": 1})
    constraint = to_constraint(schema)
    assert constraint.grammar is not None
    matcher = constraint.grammar.compile(BYTES).matcher()
    assert 1 < matcher.min_tokens_to_complete < 400
    for node in subschemas(schema):
        if node.get("type") == "object":
            assert set(node["required"]) <= set(node["properties"])
            assert node["additionalProperties"] is False


def test_schemas_show_what_there_is() -> None:
    used = {keyword for path in SCHEMAS for node in subschemas(read(path)) for keyword in node}
    assert {"enum", "const", "prefixItems", "pattern", "format", "minimum", "exclusiveMinimum"} <= used
    assert {"anyOf", "$ref", "$defs", "maxItems", "maxLength", "description"} <= used
    optional = [node for path in SCHEMAS for node in subschemas(read(path)) if "properties" in node]
    assert any(len(node["required"]) < len(node["properties"]) for node in optional)


@needs_model
def test_the_demo_extracts_everything() -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(DOCUMENTS)} of {len(DOCUMENTS)} records validate" in done.stdout


@needs_model
def test_the_quickstart_runs(capsys: pytest.CaptureFixture[str]) -> None:
    load("quickstart").main()
    out = capsys.readouterr().out
    assert "city='Berlin', year=1791" in out


@needs_model
def test_twenty_of_the_soundness_generations() -> None:
    import structgen

    soundness = load("soundness")
    assert len(soundness.CASES) == 10
    outcomes = list(soundness.generate_all(structgen.LLM(), range(2)))
    assert len(outcomes) == 20
    for question, seed, result, issues in outcomes:
        assert not issues, (question, seed, result.text)
        assert result.usage.completion_tokens <= 200
        json.loads(result.text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """`structgen serve` on a free port; its base URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "structgen", "serve", "--port", str(port), "--quiet"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            for _ in range(600):
                assert process.poll() is None, (tmp_path / "log").read_text()
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
                    assert answer.status == 200
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


@needs_model
def test_the_openai_client_runs(server: str) -> None:
    landmark = load("openai_client").main(server)
    assert (landmark.city, landmark.year) == ("Berlin", 1791)


def test_no_soundness_schema_is_bounded() -> None:
    for schema in load("soundness").CASES.values():
        assert not {"maxLength", "maxItems", "maxProperties"} & {key for node in subschemas(schema) for key in node}
