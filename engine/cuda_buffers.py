"""DeviceSlot and Bucket: what CudaRunner keeps for each slot, and for each number of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from structgen.engine.cuda_events import StepEvents, make_event
from structgen.engine.cuda_sampling import CudaSampling
from structgen.engine.device_input import DeviceInput, Rows
from structgen.kernels.paged_attention import AttentionWorkspace


class DeviceSlot:
    """What the device needs of one slot: pinned inputs, its sampling, and events."""

    def __init__(self, staged: DeviceInput, sampling: CudaSampling) -> None:
        self.staged, self.sampling = staged, sampling
        self.events = StepEvents()
        self.mask_there, self.copied = make_event(), make_event()
        self.arrived = self.copied  # what says that the tokens are on the host


@dataclass
class Bucket:
    """A step of `rows` rows: its inputs and logits on the device, and the captured graph between them.

    `adapted`: some row has an adapter; the others are spared the work.
    """

    inputs: Tensor
    rows: Rows
    logits: Tensor
    workspace: AttentionWorkspace | None
    adapted: bool
    graph: torch.cuda.CUDAGraph | None = None
