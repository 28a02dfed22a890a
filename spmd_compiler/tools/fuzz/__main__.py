"""`python -m spmd_compiler.tools.fuzz [--seconds S] [--seed N] [--programs N] [--out DIR]`: exits with 1 if one fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from .check import failure, kind, text_of
from .generate import program
from .shrink import shrink


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="fuzz", description="random programs, partitioned, against themselves"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=10**9, help="stop after so many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first program")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where shrunk failures go")
    options = parser.parse_args(argv)
    end = time.monotonic() + options.seconds
    found: Counter[str] = Counter()
    count = 0
    while count < options.programs and time.monotonic() < end:
        seed = options.seed + count
        module = program(seed)
        count += 1
        text = failure(module)
        if not text:
            continue
        found[kind(text)] += 1
        print(f"seed {seed}: {text[:300]}", flush=True)
        if found[kind(text)] <= 3 and not text.startswith("generator"):
            options.out.mkdir(parents=True, exist_ok=True)
            path = options.out / f"seed{seed}.spmd"
            path.write_text(text_of(shrink(module)))
            print(f"  shrunk to {path}", flush=True)
    print(f"{count} programs from seed {options.seed} on, {sum(found.values())} failed")
    for name, times in found.most_common():
        print(f"  {times} x {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
