"""A schedule's proof is kept, for the very schedule and sources, and only when it succeeded."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from structgen.engine import megakernel_runner
from structgen.kernels import proofs
from structgen.kernels.model_shape import ModelShape
from structgen.kernels.schedule import Schedule
from structgen.kernels.validator import ScheduleError

SHAPE = ModelShape(hidden=256, intermediate=512, layers=2, heads=4, kv_heads=2, head_dim=64, vocab_size=330)
SCHEDULE = Schedule.build(SHAPE, 2, 8)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Schedule]:
    """Of which schedules a proof was asked for."""
    schedules: list[Schedule] = []
    monkeypatch.setattr(proofs, "prove", schedules.append)
    return schedules


def test_a_schedule_is_proven_once(tmp_path: Path, asked: list[Schedule]) -> None:
    for _ in range(3):
        proofs.prove_once(SCHEDULE, tmp_path / "made when needed")
    assert asked == [SCHEDULE]


def test_another_schedule_is_proven_anew(tmp_path: Path, asked: list[Schedule]) -> None:
    others = [Schedule.build(SHAPE, 3, 8), Schedule.build(SHAPE, 2, 6), replace(SCHEDULE, largest_slot=1)]
    for schedule in (SCHEDULE, *others):
        proofs.prove_once(schedule, tmp_path)
    assert asked == [SCHEDULE, *others]


def test_a_proof_that_fails_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Schedule) -> None:
        raise ScheduleError("a race")

    monkeypatch.setattr(proofs, "prove", fail)
    for _ in range(2):
        with pytest.raises(ScheduleError):
            proofs.prove_once(SCHEDULE, tmp_path)


def test_other_sources_prove_anew(tmp_path: Path, asked: list[Schedule], monkeypatch: pytest.MonkeyPatch) -> None:
    proofs.prove_once(SCHEDULE, tmp_path)
    monkeypatch.setattr(proofs, "SOURCES", proofs.SOURCES[1:])
    proofs.prove_once(SCHEDULE, tmp_path)
    assert len(asked) == 2


def test_the_megakernels_runner_keeps_its_proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    schedules = megakernel_runner._schedules.__wrapped__(SHAPE, 8)
    assert [schedule.batch for schedule in schedules] == list(megakernel_runner.KERNEL_ROWS)
    assert len(list((tmp_path / "structgen" / "proofs").iterdir())) == len(schedules)


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path, asked: list[Schedule]) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        proofs.prove_once(SCHEDULE, tmp_path / "file" / "folder")
    assert len(asked) == 2


def test_the_sources_are_all_that_a_proof_imports() -> None:
    """Of this package, from proofs.py on."""
    folder = Path(proofs.__file__).parent
    waiting, found = ["proofs"], set[str]()
    while waiting:
        name = waiting.pop()
        found.add(name)
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("structgen.kernels."):
                module = str(node.module).removeprefix("structgen.kernels.")
                if module not in found:
                    waiting.append(module)
    assert sorted(found) == sorted(proofs.SOURCES)
