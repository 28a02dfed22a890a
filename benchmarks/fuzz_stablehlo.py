"""Random StableHLO modules with random annotations through `from_stablehlo`, beside the plain module on one device; and
modules with mistakes in their annotations, which must be taken or refused with an SpmdError.

Run: `python -m benchmarks.fuzz_stablehlo --seconds 600 [--seed 0] [--ops 12]`. Prints what fails with its seed, and writes
the module to `--keep DIR` if given. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import spmd_compiler as spmd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="so many modules instead of so many seconds")
    parser.add_argument("--ops", type=int, default=12)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("NPROC", "16")
    spmd.configure_virtual_cpus(8)
    from benchmarks.modules.check import judge
    from benchmarks.modules.mistakes import judge_mistakes

    end = time.monotonic() + options.seconds
    verdicts: Counter[str] = Counter()
    seed = options.seed
    while seed < options.seed + options.count if options.count else time.monotonic() < end:
        found = judge(Random(seed), options.ops)
        verdicts[found.style + (" wrong" if found.problem else "")] += 1
        if found.problem:
            print(f"seed {seed}: {found.problem}", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{seed}.mlir").write_text(found.annotated)
                (options.keep / f"{seed}.plain.mlir").write_text(found.plain)
        if problem := judge_mistakes(Random(seed), 5, count=3):
            verdicts["mistakes wrong"] += 1
            print(f"seed {seed}: {problem}", flush=True)
        seed += 1
    print(", ".join(f"{name}: {count}" for name, count in sorted(verdicts.items())))
    sys.exit(any(name.endswith("wrong") for name in verdicts))


if __name__ == "__main__":
    main()
