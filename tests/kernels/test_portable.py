"""The plain-Triton phases: each compared with the same phase of the interpreter, and the step with the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from structgen.kernels.instructions import Attention, Down, GateUp, Head, Instruction, Output, Qkv
from structgen.kernels.interpreter import Interpreter, Rows
from structgen.kernels.model_shape import ModelShape
from structgen.kernels.packing import LayerWeights, ModelWeights, pack_weights
from structgen.kernels.portable import PortableInput, PortableStep
from structgen.kernels.schedule import Schedule
from tests.kernels.small_models import CONFIGS, SmallModel, random_sequences, relative_error, shuffled_tables

LIMIT = 1e-2  # in bfloat16; what is found is below 1e-4


def moved(weights: ModelWeights, device: str) -> ModelWeights:
    def layer(one: LayerWeights) -> LayerWeights:
        return LayerWeights(**{name: getattr(one, name).to(device) for name in one.__dataclass_fields__})

    return ModelWeights(
        layers=tuple(map(layer, weights.layers)),
        embedding=weights.embedding.to(device),
        head=weights.head.to(device),
        final_norm=weights.final_norm.to(device),
    )


def portable_input(rows: Rows, device: str) -> PortableInput:
    """The second row's token is taken from the lane where it was sampled."""
    ids, last = rows.ids.int(), torch.zeros(4, dtype=torch.int64)
    if len(ids) > 1:
        last[2], ids[1] = ids[1].long(), -1 - 2
    return PortableInput(
        ids=ids.to(device),
        last_tokens=last.to(device),
        positions=rows.positions.int().to(device),
        table_of=torch.arange(len(ids), dtype=torch.int32, device=device),
        tables=rows.tables.int().contiguous().to(device),
        cos=rows.cos.to(device),
        sin=rows.sin.to(device),
    )


class Pair:
    """A portable step and an interpreter of one schedule, over caches of their own with the same contents."""

    def __init__(self, name: str, lengths: list[int], device: str, dtype: torch.dtype = torch.bfloat16) -> None:
        self.small = SmallModel.build(CONFIGS[name])
        self.schedule = Schedule.build(ModelShape.of(self.small.config), len(lengths), processors=5)
        self.sequences = random_sequences(self.small.config, lengths)
        tables, cache = shuffled_tables(len(lengths)), self.small.cache()
        for ids, pages in zip(self.sequences, tables, strict=True):
            if len(ids) > 1:
                self.small.fill(cache, ids[:-1], pages)
        layers = [layer.to(dtype) for layer in self.small.layers(cache)]
        weights = moved(self.small.weights, device)
        packed = pack_weights(weights, self.schedule)
        self.portable = PortableStep(self.schedule, packed, weights, [layer.clone().to(device) for layer in layers])
        self.interpreter = Interpreter(self.schedule, self.small.weights, layers, check=False)
        self.rows = self.small.rows(self.sequences, tables)
        self.input = portable_input(self.rows, device)

    def interpret(self, kind: type[Instruction], layer: int) -> None:
        for program in range(self.schedule.programs):
            for instruction in self.schedule.instructions(program):
                if isinstance(instruction, kind) and instruction.layer == layer:
                    self.interpreter.execute(program, instruction, self.rows)

    def check(self, *names: str) -> None:
        for name in names:
            found: Tensor = getattr(self.portable, name)
            assert relative_error(found.cpu(), getattr(self.interpreter, name)) < LIMIT, name


@pytest.mark.parametrize(("name", "lengths"), [("tiny", [17, 40, 3]), ("wide", [100])])
def test_each_phase_does_what_the_interpreter_does(name: str, lengths: list[int], device: str) -> None:
    pair = Pair(name, lengths, device)
    portable, step = pair.portable, pair.input
    layers = pair.schedule.shape.layers
    for layer in range(layers):
        portable.qkv_phase(layer, step)
        pair.interpret(Qkv, layer)
        pair.check("qkv")
        portable.attention_phase(layer, step)
        pair.interpret(Attention, layer)
        assert relative_error(portable.cache[layer].cpu(), pair.interpreter.cache[layer]) < LIMIT
        portable.output_phase(layer, step)
        pair.interpret(Output, layer)
        pair.check("middle")
        portable.gate_up_phase(layer, step)
        pair.interpret(GateUp, layer)
        pair.check("neurons", "middle")
        assert not portable.qkv.any()
        portable.down_phase(layer, step)
        pair.interpret(Down, layer)
        pair.check("residual")
        portable.layers_done += 1
    portable.logits.fill_(torch.nan)
    portable.head_phase(step)
    pair.interpret(Head, layers)
    pair.check("logits")


@pytest.mark.parametrize(("name", "lengths"), [("ungrouped", [16, 17]), ("tiny", [1])])
def test_a_step_computes_what_the_model_computes(name: str, lengths: list[int], device: str) -> None:
    pair = Pair(name, lengths, device)
    wanted = pair.small.expected(pair.sequences)
    assert relative_error(pair.portable.run(pair.input).cpu(), wanted) < LIMIT
    # A second step of an odd number of layers finds its buffers swapped and clear.
    assert relative_error(pair.portable.run(replace(pair.input)).cpu(), wanted) < LIMIT
