"""The resident loop on a GPU: the tokens of one launch each, stop, silence, rows that end alone."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_loop_gives_the_tokens_of_one_launch_each(batch: int) -> None:
    from structgen.kernels import bench_resident

    assert bench_resident.check(batches=(batch,)) == 0
