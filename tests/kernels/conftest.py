"""Without a GPU the Triton bodies run in Triton's interpreter, which must be asked for before they are imported."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def device() -> str:
    pytest.importorskip("triton", reason="triton is not installed")
    return "cuda" if torch.cuda.is_available() else "cpu"
