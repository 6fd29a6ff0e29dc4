"""What the check on a GPU counts as right, and a step's plain input."""

from __future__ import annotations

from math import isnan, nan

import pytest
import torch

from structgen.kernels.bench_check import Comparison, worst
from structgen.kernels.decoder import StepInput


@pytest.mark.parametrize("place", range(3))
def test_nan_is_the_worst_error_wherever_it_stands(place: int) -> None:
    errors = [1e-5, 3e-5, 2e-5]
    assert worst(*errors) == 3e-5
    errors[place] = nan
    assert isnan(worst(*errors))
    hidden, logits, cache = errors
    assert not Comparison(hidden=hidden, logits=logits, cache=cache, same=1, rows=1, chosen=True).good


def test_a_free_step_has_no_mask_no_draw_and_tokens_that_go_nowhere() -> None:
    tables = torch.tensor([[3, 1], [0, 2]])
    step = StepInput.free(torch.tensor([7, 8]), torch.tensor([0, 17]), tables, vocab_size=70)
    assert (step.ids.tolist(), step.positions.tolist(), step.table_of.tolist()) == ([7, 8], [0, 17], [0, 1])
    assert step.tables.tolist() == tables.tolist()
    assert step.mask.tolist() == [[-1] * 3] * 2
    assert (step.constrained.tolist(), step.temperatures.tolist(), step.lanes.tolist()) == ([0, 0], [0, 0], [-1, -1])
    dtypes = {name: getattr(step, name).dtype for name in ("ids", "last_tokens", "constrained", "seeds", "tables")}
    assert dtypes == {
        "ids": torch.int32,
        "last_tokens": torch.int64,
        "constrained": torch.int8,
        "seeds": torch.int64,
        "tables": torch.int32,
    }
