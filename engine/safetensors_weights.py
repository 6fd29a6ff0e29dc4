"""A Hugging Face folder: config.json, and tensors in one safetensors file or in shards with an index."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from structgen.engine.errors import ModelError
from structgen.engine.json_files import read_json_object
from structgen.engine.model_config import ModelConfig, config_from_huggingface

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")  # reading one can run whatever it was made to run
UNPICKLE = "save it again with save_pretrained(folder, safe_serialization=True), or use a safetensors copy"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


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

    @property
    def names(self) -> Iterable[str]:
        """Of all tensors in the files."""
        return self._file_of

    def has(self, name: str) -> bool:
        return name in self._file_of

    def get(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise ModelError(
                f"the checkpoint lacks {name}", hint="a shard may be missing, or config.json is another model's"
            )
        file, stored = self._file_of[name]
        try:
            tensor: Tensor = file.get_tensor(stored)
        except SafetensorError as problem:
            raise ModelError(f"{name} cannot be read: {problem}", hint="fetch it again; it may be cut short") from None
        if tensor.dtype not in _FLOATS:
            raise ModelError(
                f"{name} is stored as {tensor.dtype}", hint="quantised safetensors are not read; use GGUF or bfloat16"
            )
        return tensor


def _files(folder: Path) -> list[Path]:
    """The same that transformers takes: one file under the usual name, else what the index names; else whatever."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        where = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(shard, str) for shard in where.values()):
            raise ModelError(f"{INDEX} does not say which tensor lies in which file")
        return [folder / shard for shard in sorted(set(where.values()))]
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    if pickled:
        raise ModelError(f"{folder} has no *.safetensors file, only pickled ones ({pickled[0]})", hint=UNPICKLE)
    raise ModelError(f"{folder} has no *.safetensors file", hint="is this a model folder?")


def _read_json(file: Path) -> dict[str, Any]:
    missing = ModelError(f"{file.parent} has no readable {file.name}", hint="is this a model folder?")
    return read_json_object(file, missing=missing)
