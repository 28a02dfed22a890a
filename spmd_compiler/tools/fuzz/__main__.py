"""`python -m spmd_compiler.tools.fuzz [--seconds S] [--seed N] [--programs N] [--mode M] [--outside SHARE] [--out DIR]`:
exits with 1 if a program fails."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ...cpus import configure_virtual_cpus
from ...ir.graph import Module
from .check import failure, judge, kind
from .coverage import Coverage
from .generate import program
from .outside import Outside
from .rounding import Account
from .shrink import shrink

TIGHT = 4  # every so manieth program is compiled for devices without memory


class _Run:
    """Programs one after the other, and what was found."""

    def __init__(self, share: float, out: Path):
        """share: of the programs that others run, too. out: where shrunk failures go."""
        self.share, self.out = share, out
        self.count, self.account = 0, Account()
        self.found: Counter[str] = Counter()
        self.coverage = Coverage()
        self.outside = Outside()
        self.by_others = 0

    def one(self, seed: int, exact: bool) -> None:
        module = program(seed, exact)
        self.count += 1
        self.coverage.add(module)
        memory = None if seed % TIGHT else 0.0
        text, account = judge(module, memory=memory)
        self.account = self.account.plus(account)
        ask: Callable[[Module], str] = partial(failure, memory=memory)
        if not text and random.Random(seed).random() < self.share:
            self.by_others += 1
            ask = self.outside.failure
            text = ask(module)
        if text:
            self.failed(f"{seed}{'' if exact else 'r'}", module, text, ask)

    def failed(self, name: str, module: Module, text: str, ask: Callable[[Module], str]) -> None:
        self.found[kind(text)] += 1
        print(f"seed {name}: {text[:300]}", flush=True)
        if self.found[kind(text)] <= 3 and not text.startswith("generator"):
            self.out.mkdir(parents=True, exist_ok=True)
            path = self.out / f"seed{name}.spmd"
            path.write_text(str(shrink(module, judge=ask)))
            print(f"  shrunk to {path}", flush=True)

    def report(self, first: int) -> None:
        print(f"{self.count} programs from seed {first} on, {sum(self.found.values())} failed")
        agree, doubt, lost = self.account.agree, self.account.uncertain, self.account.not_finite
        print(f"elements: {agree} agree, {doubt} uncertain, {lost} not finite")
        other = self.outside
        print(
            f"by XLA and the reference: {self.by_others}; refused {other.refused}, XLA itself wrong {other.wrong}"
        )
        print(self.coverage.summary())
        for name, times in self.found.most_common():
            print(f"  {times} x {name}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="fuzz", description="random programs, partitioned, against themselves"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=10**9, help="stop after so many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first program")
    parser.add_argument("--mode", choices=("exact", "rounding", "both"), default="both")
    parser.add_argument("--outside", type=float, default=0.01, help="the share that XLA and others run, too")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where shrunk failures go")
    options = parser.parse_args(argv)
    if options.outside:
        configure_virtual_cpus(8)
    end = time.monotonic() + options.seconds
    run = _Run(options.outside, options.out)
    while run.count < options.programs and time.monotonic() < end:
        seed = options.seed + run.count
        run.one(seed, options.mode == "exact" or (options.mode == "both" and seed % 2 == 0))
    run.outside.close()
    run.report(options.seed)
    return 1 if run.found else 0


if __name__ == "__main__":
    sys.exit(main())
