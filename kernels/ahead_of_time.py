"""The decode-step kernel compiled for Hopper on a machine without a GPU: shows that it compiles and what it needs.

python -m structgen.kernels.ahead_of_time [--llama] [--batch 8] [--resident]
"""

from __future__ import annotations

import argparse
from typing import Any

from structgen.kernels.model_shape import LLAMA_1B, ModelShape
from structgen.kernels.schedule import Schedule
from structgen.kernels.step_sizes import StepSizes

SMALL = ModelShape(hidden=256, intermediate=512, layers=2, heads=4, kv_heads=2, head_dim=64, vocab_size=330)
_POINTERS = {
    "*i32": "schedule state counters error ids positions table_of tables mask best_tokens lanes decisions "
    "gates word inbox_mask",
    "*i64": "trace slot_traces cache_offsets last_tokens seeds offsets tokens inbox_seeds outbox",
    "*bf16": "packed norms embedding head_rows cache_base",
    "*fp32": "residuals qkv neurons partial partial_max partial_sum cos sin temperatures logits best_scores",
    "*i8": "constrained",
}
_NUMBERS = {"cache_stride": "i64"} | dict.fromkeys(
    ("layers", "mode", "steps", "max_pages", "sparse_limit", "watchdog_us", "spare_table", "offset_stride"), "i32"
)


def compile_for_hopper(sizes: StepSizes, *, resident: bool = False) -> Any:
    """Triton's compiled kernel, of a step or of the resident loop.

    .metadata.shared is its shared memory in bytes, .asm its code in all forms.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from structgen.kernels.device.decode_step import decode_step
    from structgen.kernels.device.resident_step import resident_step

    kernel = resident_step if resident else decode_step
    rows = sizes.schedule.slot_blocks * 64
    types = {name: kind for kind, names in _POINTERS.items() for name in names.split()} | _NUMBERS
    types |= {"desc": f"tensordesc<bf16[{rows}, 64],{sizes.weight_layout!r}>", "cfg": "constexpr"}
    signature = {name: types[name] for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name == "cache_stride"
    }
    source = GluonASTSource(kernel, signature, {"cfg": sizes}, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m structgen.kernels.ahead_of_time")
    parser.add_argument("--llama", action="store_true", help="Llama-3.2-1B on 132 processors instead of a small model")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--resident", action="store_true", help="the resident loop instead of one step")
    options = parser.parse_args()
    shape, processors = (LLAMA_1B, 132) if options.llama else (SMALL, 8)
    sizes = StepSizes(Schedule.build(shape, options.batch, processors))
    kernel = compile_for_hopper(sizes, resident=options.resident)
    print(f"{kernel.metadata.shared} bytes of shared memory, {sizes.slots} slots of {sizes.slot_bytes} bytes")


if __name__ == "__main__":
    main()
