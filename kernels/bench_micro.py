"""Microbenchmarks: how fast weights can be read, and what a barrier of programs costs when nothing else happens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structgen.kernels.bench_timing import event_milliseconds

STREAM_BYTES = 2_471_493_632  # the weights of Llama-3.2-1B
ROUNDS = 2000


def processors() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def run() -> None:
    weights = torch.randint(-(2**31), 2**31 - 1, (STREAM_BYTES // 128, 32), dtype=torch.int32, device="cuda")
    for programs, warps, block in ((4 * processors(), 16, 8192), (2 * processors(), 16, 16384)):
        _report(f"plain loads, {programs} programs of {warps} warps", plain_read(weights, programs, warps, block))
    for kilobytes, slots in ((8, 24), (16, 12), (32, 6)):
        for flight in (2, 3, 4, slots):
            label = f"TMA ring, {slots} slots of {kilobytes} KB, {flight} under way"
            _report(label, ring_read(weights, kilobytes, slots, flight))
    for group in (processors(), 128, 16, 4):
        print(f"barrier among {group} programs: {barrier(group):.2f} us")


def read_ceiling() -> float:
    """ms to read the weights of Llama-3.2-1B once, the best of the ways above."""
    weights = torch.randint(-(2**31), 2**31 - 1, (STREAM_BYTES // 128, 32), dtype=torch.int32, device="cuda")
    plain = plain_read(weights, 2 * processors(), 16, 16384)
    return min(plain, *(ring_read(weights, kilobytes, slots, slots) for kilobytes, slots in ((16, 12), (32, 6))))


def _report(label: str, ms: float) -> None:
    print(f"{label}: {ms:.4f} ms, {STREAM_BYTES / ms / 1e9:.3f} TB/s")


def plain_read(weights: Tensor, programs: int, warps: int, block: int) -> float:
    from structgen.kernels.device.micro import read_all

    sink = torch.zeros(programs, dtype=torch.int32, device="cuda")
    words = weights.flatten()
    return event_milliseconds(lambda: read_all[(programs,)](words, sink, words.numel(), BLOCK=block, num_warps=warps))


def ring_read(weights: Tensor, kilobytes: int, slots: int, flight: int) -> float:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from structgen.kernels.device.micro import stream_all

    programs, rows = processors(), kilobytes * 8
    shared: Any = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    registers: Any = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    halves = weights.view(torch.bfloat16)
    descriptor = TensorDescriptor.from_tensor(halves, [rows, 64], shared)
    count = halves.shape[0] // rows // programs
    sink = torch.zeros(programs, device="cuda")
    ms = event_milliseconds(
        lambda: stream_all[(programs,)](
            descriptor, sink, count, programs, slots, rows, flight, shared, registers, num_warps=4
        )
    )
    return ms * halves.shape[0] / (count * programs * rows)


def barrier(group: int) -> float:
    """Microseconds of one barrier among each `group` programs, all at it at once."""
    from structgen.kernels.device.micro import many_barriers

    programs = processors() // group * group
    counters = torch.zeros(programs * 16, dtype=torch.int32, device="cuda")
    error = torch.zeros(1, dtype=torch.int32, device="cuda")
    done = 0

    def launch() -> None:
        nonlocal done
        many_barriers[(programs,)](counters, error, ROUNDS, done, group, num_warps=4, launch_cooperative_grid=True)
        done += ROUNDS

    ms = event_milliseconds(launch, repeats=5)
    assert not error.item(), "a program did not come to the barrier"
    return ms * 1000 / ROUNDS
