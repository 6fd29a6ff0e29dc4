"""The diff tool: silent about kernels that are right, and it names the instruction that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from structgen.kernels.diff import MADE_BY, SHAPES, Difference, first_difference, main, relative_error
from structgen.kernels.scene import Scene, Values, interpreted
from structgen.kernels.subjects import PortableSubject


@pytest.fixture(scope="module")
def scene(device: str) -> Scene:
    shape = replace(SHAPES["small"], layers=2)
    return Scene.build(shape, batch=2, context=20, processors=2, device=device, seed=3)


@dataclass(frozen=True)
class Spoilt:
    """A kernel that is right, but for one value from one layer on, and for what follows from it."""

    left: list[Values]
    right_logits: Tensor
    layer: int
    name: str

    def after(self, layers: int) -> Values:
        if layers <= self.layer:
            return self.left[layers - 1]
        wrong = list(MADE_BY)[list(MADE_BY).index(self.name) :] if layers == self.layer + 1 else list(MADE_BY)
        return {name: value * (1.1 if name in wrong else 1.0) for name, value in self.left[layers - 1].items()}

    def logits(self) -> Tensor:
        return self.right_logits * 1.1


@pytest.mark.parametrize("layer", [0, 3, 6])
@pytest.mark.parametrize("name", MADE_BY)
def test_the_first_wrong_instruction_is_named(layer: int, name: str) -> None:
    left: list[Values] = [{each: torch.randn(2, 4) for each in MADE_BY} for _ in range(7)]
    logits = torch.randn(2, 9)
    found = first_difference(Spoilt(left, logits, layer, name), left, logits)
    assert found is not None
    assert (found.layer, found.instruction) == (layer, MADE_BY[name])
    found = first_difference(Spoilt(left, logits, 7, name), left, logits)
    assert found is not None
    assert (found.layer, found.instruction) == (7, "Head")
    assert str(Difference(3, "Down", 0.25)) == "Down of layer 3 differs first: relative error 2.5e-01"


def test_a_wrong_block_of_weights_is_traced_to_its_instruction(scene: Scene) -> None:
    """The second layer's weights are spoilt in the packed copy of the kernel alone."""
    packed, schedule, expected = scene.packed.clone(), scene.schedule, interpreted(scene)
    assert first_difference(PortableSubject(scene), *expected) is None
    for program in range(schedule.programs):
        stream, size = schedule.stream(program), schedule.slot_blocks
        for index, block in enumerate(schedule.layer_blocks(program)):
            if block.matrix == "gate":
                slot = stream["layer_base"] + (stream["layer_slots"] + index // size) * stream["layer_stride"]
                packed.view(-1, 64, 64)[slot * size + index % size] *= 1.5
    found = first_difference(PortableSubject(replace(scene, packed=packed)), *expected)
    assert found is not None
    assert (found.layer, found.instruction) == (1, "GateUp")


def test_the_command_says_so(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kernel", "portable", "--shape", "small", "--layers", "1", "--context", "3", "--processors", "2"]
    assert main(arguments) == 0
    assert "the same as the interpreter" in capsys.readouterr().out


def test_what_is_not_a_number_is_an_error() -> None:
    assert relative_error(torch.tensor([float("nan"), 1.0]), torch.ones(2)) == float("inf")
