"""What several folders of tests share: the official JSON Schema test suite, where it lies beside the checkout."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ.get("STRUCTGEN_DATA", Path(__file__).parents[2] / "shared" / "data"))
ARCHIVE = DATA / "json-schema-test-suite.tar.gz"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema",
    "draft6": "http://json-schema.org/draft-06/schema",
    "draft7": "http://json-schema.org/draft-07/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
OTHER_DRAFTS = ("remotes/v1/", "remotes/draft3/", "remotes/draft-next/")


@dataclass(frozen=True)
class OfficialSuite:
    """The suite's files: path in the archive -> parsed JSON."""

    files: dict[str, Any]

    def remotes(self) -> dict[str, Any]:
        """What the suite expects to find on localhost: URI -> document."""
        return {
            path.replace("remotes/", "http://localhost:1234/", 1): contents
            for path, contents in self.files.items()
            if path.startswith("remotes/") and not path.startswith(OTHER_DRAFTS)
        }

    def groups(self, draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(path below tests/, group of tests with one schema) of a draft, optional ones included."""
        for path, groups in self.files.items():
            if path.startswith(f"tests/{draft}/"):
                yield from ((path.removeprefix("tests/"), group) for group in groups)


@pytest.fixture(scope="session")
def official_suite() -> OfficialSuite:
    if not ARCHIVE.exists():
        pytest.skip(f"the JSON Schema test suite is not there ({ARCHIVE.name}; STRUCTGEN_DATA names its folder)")
    with tarfile.open(ARCHIVE) as archive:
        members = [member for member in archive if member.name.endswith(".json")]
        return OfficialSuite({m.name: json.load(file) for m in members if (file := archive.extractfile(m))})


@pytest.fixture
def drafts() -> dict[str, str]:
    """The suite's names of the drafts -> URIs of their metaschemas."""
    return DRAFTS


@pytest.fixture(params=DRAFTS)
def draft(request: pytest.FixtureRequest) -> tuple[str, str]:
    """(the suite's name of a draft, the URI of its metaschema)."""
    return request.param, DRAFTS[request.param]
