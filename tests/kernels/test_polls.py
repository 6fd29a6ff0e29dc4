"""Inline PTX that loops keeps the lanes of a warp together.

Where one lane loops while the others run ahead, ptxas may load a spilled register again before they meet, and by an
instruction that drops the cache line of all lanes' values: the last lane then reads an old one. No run shows that for
certain, so the source must not allow it: no loop of single lanes, and a vote or a shuffle before each conditional exit
or turn whose condition is not the same in all lanes by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")
from structgen.kernels.device.flagged import POLL_8, POLL_16

DEVICE = Path(__file__).parents[2] / "kernels" / "device"
BLOCK = re.compile(r'"""\s*(\{.*?\})"""', re.DOTALL)
SINGLE_LANE = re.compile(r"%laneid|%tid\.x;\s*and\.b32 (\w+), \1, 127")
LOADED = re.compile(r"ld\.(?:acquire|relaxed|volatile)")


def loops() -> list[tuple[str, str]]:
    found = [(name, poll.value) for name, poll in (("POLL_8", POLL_8), ("POLL_16", POLL_16))]
    for path in sorted(DEVICE.glob("*.py")):
        blocks = BLOCK.findall(path.read_text(encoding="utf-8"))
        found += [(f"{path.name}:{index}", block) for index, block in enumerate(blocks) if "bra" in block]
    return found


def strays(block: str) -> list[str]:
    """Branches of the loop on what was loaded or timed, without a vote or a shuffle since."""
    stray, own = [], False  # whether the lanes may have values of their own
    for line in block[block.index("SPIN:") :].splitlines():
        if LOADED.search(line) or "%globaltimer" in line:
            own = True
        elif "vote.sync" in line or "shfl.sync" in line:
            own = False
        elif re.search(r"@!?\w+ bra", line) and own:
            stray.append(line.strip())
    return stray


@pytest.mark.parametrize(("name", "block"), loops(), ids=[name for name, _ in loops()])
def test_a_loop_keeps_the_lanes_of_a_warp_together(name: str, block: str) -> None:
    assert not SINGLE_LANE.search(block), "a single lane would loop"
    assert strays(block) == []


def test_the_check_sees_what_it_is_for() -> None:
    """As `wait` was: one lane polls."""
    old = """{
        mov.u32 t, %tid.x;
        and.b32 t, t, 127;
        @p bra DONE;
    SPIN:
        ld.acquire.gpu.global.u32 v, [$1];
        setp.ge.s32 q, v, 0;
        @q bra DONE;
        bra SPIN;
    DONE:
    }"""
    assert SINGLE_LANE.search(old)
    assert strays(old) == ["@q bra DONE;"]
    assert len(loops()) >= 5
