"""A Hugging Face folder: config.json, and tensors in one safetensors file or in shards with an index."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from structgen.engine.errors import ModelError
from structgen.engine.model_config import ModelConfig, config_from_huggingface

INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """A WeightSource over an open folder; a context manager that closes the files."""

    def __init__(self, folder: Path) -> None:
        self.config: ModelConfig = config_from_huggingface(_read_json(folder / "config.json"))
        self._stack = ExitStack()
        self._file_of: dict[str, Any] = {}
        for file in _files(folder):
            try:
                opened = self._stack.enter_context(safe_open(str(file), framework="pt"))
            except (OSError, SafetensorError) as problem:
                self._stack.close()
                raise ModelError(
                    f"{file.name} cannot be read: {problem}", hint="fetch it again; it may be cut short"
                ) from None
            names = opened.keys()
            self._file_of.update({name.removeprefix("model."): (opened, name) for name in names})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has(self, name: str) -> bool:
        return name in self._file_of

    def get(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise ModelError(
                f"the checkpoint lacks {name}", hint="a shard may be missing, or config.json is another model's"
            )
        file, stored = self._file_of[name]
        tensor: Tensor = file.get_tensor(stored)
        if not tensor.is_floating_point():
            raise ModelError(
                f"{name} is stored as {tensor.dtype}", hint="quantised safetensors are not read; use GGUF or bfloat16"
            )
        return tensor


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        shards = sorted(set(_read_json(folder / INDEX).get("weight_map", {}).values()))
        return [folder / shard for shard in shards]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no *.safetensors file", hint="PyTorch .bin checkpoints are not read")
    return files


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise ModelError(f"{file.parent} has no readable {file.name}", hint="is this a model folder?") from None
    except ValueError as problem:
        raise ModelError(f"{file.name} is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file.name} is not a JSON object")
    return value
