"""`python -m spmd_compiler.tools.fuzz [--seconds S] [--seed N] [--programs N] [--mode M] [--out DIR]`: exits with 1 if one
fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from .check import judge, kind
from .generate import program
from .rounding import Account
from .shrink import shrink


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="fuzz", description="random programs, partitioned, against themselves"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=10**9, help="stop after so many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first program")
    parser.add_argument("--mode", choices=("exact", "rounding", "both"), default="both")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where shrunk failures go")
    options = parser.parse_args(argv)
    end = time.monotonic() + options.seconds
    found: Counter[str] = Counter()
    count, total = 0, Account()
    while count < options.programs and time.monotonic() < end:
        seed = options.seed + count
        exact = options.mode == "exact" or (options.mode == "both" and seed % 2 == 0)
        module = program(seed, exact)
        count += 1
        text, account = judge(module)
        total = total.plus(account)
        if not text:
            continue
        found[kind(text)] += 1
        print(f"seed {seed}{'' if exact else ' rounding'}: {text[:300]}", flush=True)
        if found[kind(text)] <= 3 and not text.startswith("generator"):
            options.out.mkdir(parents=True, exist_ok=True)
            path = options.out / f"seed{seed}{'' if exact else 'r'}.spmd"
            path.write_text(str(shrink(module)))
            print(f"  shrunk to {path}", flush=True)
    print(f"{count} programs from seed {options.seed} on, {sum(found.values())} failed")
    print(f"elements: {total.agree} agree, {total.uncertain} uncertain, {total.not_finite} not finite")
    for name, times in found.most_common():
        print(f"  {times} x {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
