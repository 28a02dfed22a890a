"""Runs JAX's own primitive test harnesses (5,594 cases) through the compiler.

    python benchmarks/conformance.py roundtrip [--limit N] [--seed S] [--shard i/n] [--x64]
                                               [--execute none|changed|all]

`roundtrip`: import and export of every case that lowers under `jax.jit`. Where the exported text differs from
the original (`--execute changed`), or for all cases, both are compiled and their results compared bit by bit.

    python benchmarks/conformance.py spmd [--limit N] [--seed S] [--shard i/n] [--x64]

`spmd`: every case through `spmd_jit` with random layouts, uneven ones too, against `jax.jit` on one device.

Exits with 1 if a case is different or an error.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Skip(Exception):
    """A case that `jax.jit` itself can't run; its message says why."""


@dataclass(frozen=True)
class Case:
    """One harness: a function of arrays and a maker of its arguments."""

    name: str
    harness: Any
    seed: int = 0

    @property
    def function(self) -> Callable[..., Any]:
        return self.harness.dyn_fun

    def arguments(self) -> list[Any]:
        return list(self.harness.dyn_args_maker(np.random.RandomState(self.seed)))

    def lower(self) -> tuple[jax.stages.Lowered, list[Any]]:
        """The case under `jax.jit`, and its arguments; raises Skip if JAX doesn't support it."""
        try:
            args = self.arguments()
            return jax.jit(self.function).lower(*args), args
        except Exception as error:
            raise Skip(f"{type(error).__name__}: {first_line(error)}") from error


@dataclass
class Report:
    """How many cases came out how, and which failed."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def show(self, seconds: float) -> None:
        for name, detail in self.failures:
            print(f"FAILED {name}: {detail}")
        for why, count in self.skipped.most_common():
            print(f"skipped {count}: {why[:150]}")
        counts = ", ".join(f"{n} {status}" for status, n in sorted(self.counts.items()))
        print(f"{self.counts.total()} cases in {seconds:.0f} s: {counts}")
        ran = {status: n for status, n in self.counts.items() if status.startswith("same result")}
        sharded = sum(ran.values()) - ran.pop("same result, no dim to shard", 0)
        spread = sum(n for s, n in ran.items() if "fallback" not in s and "gathered for" not in s)
        if sharded:
            print(
                f"{sharded} sharded, of these {100 * spread / sharded:.1f} % without a fallback or a gathered operand"
            )


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def load_cases(limit: int | None = None, seed: int = 0, shard: tuple[int, int] = (0, 1)) -> list[Case]:
    """All harnesses in their order, or a random `limit` of them; then every n-th from the i-th on."""
    # Importing the module defines the harnesses, with the dtypes that x64 mode has at that moment.
    from jax._src.internal_test_util import test_harnesses

    cases = [Case(h.fullname, h) for h in test_harnesses.all_harnesses]
    if limit is not None and limit < len(cases):
        cases = [cases[i] for i in sorted(random.Random(seed).sample(range(len(cases)), limit))]
    index, count = shard
    return cases[index::count]


def sweep(cases: Iterable[Case], check: Callable[[Case], str]) -> Report:
    """Checks every case. `check` gives a status; "different: …" and exceptions are failures, Skip is not."""
    report = Report()
    for case in cases:
        try:
            status = check(case)
        except Skip as skip:
            report.counts["skipped"] += 1
            report.skipped[str(skip)] += 1
            continue
        except Exception as error:
            status = f"error: {type(error).__name__}: {first_line(error)}"
        kind = status.partition(":")[0]
        report.counts[kind] += 1
        if kind in ("different", "error"):
            report.failures.append((case.name, status))
    return report


def arrays(tree: Any) -> Iterator[np.ndarray]:
    """The leaves of a result as numpy arrays; a PRNG key by its data."""
    for leaf in jax.tree.leaves(tree):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        yield np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def bitwise_difference(expected: Any, actual: Any) -> str:
    """ "" if both results have the same bytes, else what differs."""
    pairs = list(zip(arrays(expected), arrays(actual), strict=True))
    for i, (a, b) in enumerate(pairs):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} is {b.dtype}{b.shape}, not {a.dtype}{a.shape}"
        if a.tobytes() != b.tobytes():
            return f"result {i} has other values"
    return ""


def with_module(lowered: jax.stages.Lowered, module: Any) -> jax.stages.Lowered:
    """The same computation to JAX's eyes, with another StableHLO module."""
    computation: Any = copy.copy(lowered._lowering)
    computation._hlo, computation._executable = module, None
    out = copy.copy(lowered)
    out._lowering = computation
    return out


def roundtrip(case: Case, execute: str) -> str:
    from spmd_compiler.ir.exporter import export_module
    from spmd_compiler.ir.importer import import_module
    from spmd_compiler.ir.mesh import Mesh

    lowered, args = case.lower()
    original: Any = lowered.compiler_ir()
    before = str(original)
    module = export_module(import_module(original, Mesh([("x", 1)])), context=original.context)
    same_text = before == str(module)
    if execute == "none" or (execute == "changed" and same_text):
        return "same text" if same_text else "other text"
    try:
        expected = lowered.compile()(*args)
    except Exception as error:
        raise Skip(f"does not run: {type(error).__name__}: {first_line(error)}") from error
    problem = bitwise_difference(expected, with_module(lowered, module).compile()(*args))
    return f"different: {problem}" if problem else "same result"


def _shard(text: str) -> tuple[int, int]:
    index, count = text.split("/")
    return int(index), int(count)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--limit", type=int, help="a random sample of so many cases")
    common.add_argument("--seed", type=int, default=0)
    common.add_argument("--shard", type=_shard, default=(0, 1), help="i/n: part i of n, from 0")
    common.add_argument("--x64", action="store_true", help="64-bit mode, which has more cases")
    command = commands.add_parser("roundtrip", parents=[common], help="export ∘ import computes the same")
    command.add_argument("--execute", choices=["none", "changed", "all"], default="changed")
    commands.add_parser("spmd", parents=[common], help="random layouts on a 2x2x2 mesh, against jax.jit")
    options = parser.parse_args()
    if options.command == "spmd":
        import spmd_compiler as spmd

        spmd.configure_virtual_cpus(8)
    jax.config.update("jax_enable_x64", options.x64)
    start = time.perf_counter()
    cases = load_cases(options.limit, options.seed, options.shard)
    if options.command == "spmd":
        from benchmarks.conformance_spmd import spmd_check

        report = sweep(cases, lambda case: spmd_check(case, options.seed))
    else:
        report = sweep(cases, lambda case: roundtrip(case, options.execute))
    report.show(time.perf_counter() - start)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
