"""OnStream: whose work goes where."""

from __future__ import annotations

from typing import Any

import torch


class OnStream:
    """`with` it, the thread's work goes to its stream: `torch.cuda.stream` without the questions about devices, which
    take 10 us each time. For one thread; may be entered again inside.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self._device = stream.device_index
        self._before: list[Any] = []

    def __enter__(self) -> None:
        if torch.cuda.current_device() == self._device:
            self._before.append(torch.cuda.current_stream(self._device))
            torch.cuda.set_stream(self.stream)
        else:  # another device is current, and must be so again
            elsewhere = torch.cuda.stream(self.stream)
            elsewhere.__enter__()  # type: ignore[no-untyped-call]
            self._before.append(elsewhere)

    def __exit__(self, *error: object) -> None:
        before = self._before.pop()
        if isinstance(before, torch.cuda.StreamContext):
            before.__exit__(*error)
        else:
            torch.cuda.set_stream(before)
