"""The layout that packaging, imports and editors rely on: links, one-way imports, a core that needs no triton."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("grammar", "engine", "kernels")
# What each room may import of ours.
ALLOWED = {
    "kernels": {"kernels"},
    "grammar": {"grammar"},
    "engine": {"engine", "grammar", "kernels"},
    "structgen": {"structgen", "engine", "grammar"},
}


def python_files(room: str) -> Iterator[Path]:
    """Files of a room; those of `structgen` without the linked rooms."""
    for folder, folders, names in os.walk(ROOT / room):
        folders[:] = [name for name in folders if not (Path(folder) / name).is_symlink() and name != "__pycache__"]
        yield from (Path(folder) / name for name in names if name.endswith(".py"))


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute names of everything a file imports; relative imports as dots."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            if module == "structgen":
                yield from (f"structgen.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    """The room a module of ours belongs to; None for foreign ones."""
    parts = module.split(".")
    if parts[0] != "structgen":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "structgen"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_linked_into_the_package(room: str) -> None:
    link = ROOT / "structgen" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"
    assert (ROOT / room).is_dir()


def test_kernels_has_no_init_and_the_others_have_one() -> None:
    # With the root first on sys.path a package `kernels` would shadow Hugging Face's, which transformers imports.
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert all((ROOT / room / "__init__.py").is_file() for room in ("grammar", "engine", "structgen"))


@pytest.mark.parametrize("room", ["structgen", *ROOMS])
def test_imports_point_one_way(room: str) -> None:
    wrong = []
    for path in python_files(room):
        for module in imported_modules(path):
            target = room_of(module)
            bare = module.split(".")[0] in ROOMS
            if module.startswith(".") or bare or (target is not None and target not in ALLOWED[room]):
                wrong.append(f"{path.relative_to(ROOT)}: {module}")
    assert not wrong


@pytest.mark.parametrize("room", ["structgen", *ROOMS, "tests", "examples"])
def test_every_file_takes_its_annotations_as_text(room: str) -> None:
    def is_ready(path: Path) -> bool:
        text = path.read_text("utf-8")
        return "from __future__ import annotations" in text or path.name == "__init__.py"

    assert [str(path.relative_to(ROOT)) for path in python_files(room) if not is_ready(path)] == []


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
for name in {blocked!r}:
    sys.modules.pop(name, None)
"""


def run_blocked(blocked: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter where some packages cannot be imported."""
    program = BLOCKED.format(blocked=blocked) + code
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_core_imports_without_triton() -> None:
    code = "import structgen.grammar, structgen.engine, structgen.llm, structgen.cli, structgen.server"
    done = run_blocked(("triton", "transformers"), code)
    assert done.returncode == 0, done.stderr


def test_the_grammar_imports_without_torch() -> None:
    done = run_blocked(("torch", "transformers", "triton"), "import structgen.grammar")
    assert done.returncode == 0, done.stderr


def test_help_needs_neither_torch_nor_numba() -> None:
    code = "import sys; sys.argv = ['structgen', '--help']; from structgen.cli import main; main()"
    done = run_blocked(("torch", "numba", "transformers", "jsonschema", "pydantic"), code)
    assert done.returncode == 0, done.stderr
    assert "extract" in done.stdout
