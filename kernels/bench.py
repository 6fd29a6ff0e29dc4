"""Benchmarks and checks of the decode-step kernel on a GPU of Hopper's kind.

python -m structgen.kernels.bench micro                     read ceiling, barriers
python -m structgen.kernels.bench decode [--no-compile]     ms a token; the last line is one JSON object
python -m structgen.kernels.bench sampling                  masked sampling alone
python -m structgen.kernels.bench check [--steps 1000]      correctness against float32
python -m structgen.kernels.bench resident                  tokens whose masks the host makes, one by one and in a loop
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from structgen.kernels import bench_check, bench_decode, bench_micro, bench_resident, bench_sampling


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m structgen.kernels.bench")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("micro")
    decode = commands.add_parser("decode")
    decode.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes a while")
    commands.add_parser("sampling")
    check = commands.add_parser("check")
    check.add_argument("--steps", type=int, default=1000, help="random steps whose best token is compared")
    check.add_argument("--small", action="store_true", help="one small model only, for compute-sanitizer")
    resident = commands.add_parser("resident")
    resident.add_argument("--check-only", action="store_true", help="a small model, not timed")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("needs a CUDA GPU of compute capability 9 (H100, H200)", file=sys.stderr)
        return 2
    if options.command == "micro":
        bench_micro.run()
    elif options.command == "decode":
        print(json.dumps(bench_decode.run(compiled=not options.no_compile)))
    elif options.command == "sampling":
        print(json.dumps({"masked_sampling_us": bench_sampling.masked_sampling_us()}))
    elif options.command == "resident":
        if bad := bench_resident.check():
            return bad
        if not options.check_only:
            print(json.dumps(bench_resident.run()))
    elif options.small:
        return bench_check.run_small()
    else:
        return bench_check.run(options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
