"""load_model: a Hugging Face folder or a GGUF file -> LlamaModel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from structgen.engine.checked_weights import CheckedWeights
from structgen.engine.errors import ModelError
from structgen.engine.llama import LlamaModel, Precision
from structgen.engine.safetensors_weights import PICKLED, UNPICKLE, SafetensorsWeights

Dtype = Literal["bfloat16", "float32", "int8", "auto"]
Device = Literal["cpu", "cuda", "auto"]


def load_model(path: str | Path, *, dtype: Dtype = "auto", device: Device = "auto") -> LlamaModel:
    """Load a `.gguf` file, or a folder with config.json and *.safetensors (sharded or not).

    ModelError when the file is missing, damaged or not Llama-shaped. `auto` takes the fastest form that the CPU has
    kernels for: 8-bit weights, or float32 where PyTorch would emulate bfloat16. On a GPU it is bfloat16.
    `device="auto"` takes a GPU when PyTorch sees one and `dtype` is not int8, which is for the CPU.
    """
    device = _device(device, dtype)
    precision = _precision(dtype, device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many small operations: more threads gain little, and lose much on a busy machine
    try:
        return _load(Path(path), precision, device)
    finally:
        torch.set_num_threads(threads)


def _load(place: Path, precision: Precision, device: str) -> LlamaModel:
    if place.is_dir():
        with SafetensorsWeights(place) as folder:
            return LlamaModel(folder.config, CheckedWeights(folder, folder.names, folder.config), precision, device)
    if not place.is_file():
        raise ModelError(f"there is no model at {place}", hint="give a .gguf file or a Hugging Face folder")
    if place.suffix.lower() in PICKLED:
        raise ModelError(f"{place.name} is a pickled checkpoint, which is not read", hint=UNPICKLE)
    if place.suffix.lower() != ".gguf":
        raise ModelError(f"{place.name} is not a model file of a known kind", hint="give a .gguf file or a folder")
    from structgen.engine.gguf_weights import GGUFWeights  # needs the gguf package, which folders do without

    file = GGUFWeights(place)
    return LlamaModel(file.config, CheckedWeights(file, file.names, file.config), precision, device)


def _device(wanted: Device, dtype: Dtype) -> Device:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() and dtype != "int8" else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ModelError("PyTorch sees no GPU", hint="use device='cpu', or install PyTorch for your GPU")
    return wanted


def _precision(dtype: Dtype, device: str) -> Precision:
    if dtype == "auto" and device != "cpu":
        return "bfloat16"
    if dtype == "auto":
        return "float32" if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else "int8"
    if dtype not in ("bfloat16", "float32", "int8"):
        raise ValueError(f"dtype must be bfloat16, float32, int8 or auto, not {dtype!r}")
    return dtype
