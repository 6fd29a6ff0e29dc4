"""DeviceSlot: what CudaRunner keeps for each slot."""

from __future__ import annotations

from torch import Tensor

from structgen.engine.cuda_events import StepEvents, make_event
from structgen.engine.cuda_sampling import CudaSampling
from structgen.engine.device_input import DeviceInput
from structgen.engine.logprobs import Logprobs


class DeviceSlot:
    """What the device needs of one slot: inputs on the host, page tables, sampling, and events.

    Each slot has page tables of its own (int32 [lanes, pages]): a step that runs reads a lane's row as it was when it
    was launched, though the lane may be another sequence's by the next step.
    """

    def __init__(self, staged: DeviceInput, tables: Tensor, sampling: CudaSampling) -> None:
        self.staged, self.tables, self.sampling = staged, tables, sampling
        self.tables_version = 0  # of LaneTables
        self.events = StepEvents()
        self.inputs_there, self.mask_there, self.arrived = make_event(), make_event(), make_event()
        # The compute stream's tensors, from which the download stream copies: given back to the allocator any earlier,
        # the next step could be writing to them by then.
        self.logprobs: Logprobs | None = None
