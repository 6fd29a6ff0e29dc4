"""DeviceSlot: what CudaRunner keeps for each slot."""

from __future__ import annotations

from structgen.engine.cuda_events import StepEvents, make_event
from structgen.engine.cuda_sampling import CudaSampling
from structgen.engine.device_input import DeviceInput
from structgen.engine.logprobs import Logprobs


class DeviceSlot:
    """What the device needs of one slot: pinned inputs, its sampling, and events."""

    def __init__(self, staged: DeviceInput, sampling: CudaSampling) -> None:
        self.staged, self.sampling = staged, sampling
        self.events = StepEvents()
        self.mask_there, self.copied = make_event(), make_event()
        self.arrived = self.copied  # what says that the tokens are on the host
        # The compute stream's tensors, from which the copy stream copies: given back to the allocator any earlier, the
        # next step could be writing to them by then.
        self.logprobs: Logprobs | None = None
