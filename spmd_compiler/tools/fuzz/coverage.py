"""Which ops of the table the programs reach, and why others are not among them."""

from __future__ import annotations

from collections import Counter

from ...ir.graph import Module
from ...passes.rules.table import CONTROL, TABLE

# Ops that run in some way of their own, beside those that have a rule in the table.
OTHERS = frozenset({"call", "composite", "custom_call", "relayout", "rng_bit_generator"})

_MANUAL = "in manual regions only, or at their border: benchmarks/fuzz_stablehlo.py tries these"

# Ops of the table that no program has, and why.
UNREACHED = {
    **dict.fromkeys(("all_gather", "all_reduce", "all_to_all", "collective_broadcast"), _MANUAL),
    **dict.fromkeys(("collective_permute", "enter_manual", "leave_manual", "reduce_scatter"), _MANUAL),
    "chlo.scan": "on GPUs only: XLA's CPU compiler aborts if nobody reads where a scan ends",
    "chlo.ragged_dot": "on GPUs and TPUs only: for CPUs JAX writes masks and a product",
    "dynamic_roll": "made by merge_moves of a dynamic_slice of a value beside itself",
    "manual_computation": "holds a per-device program: benchmarks/fuzz_stablehlo.py tries these",
    "padded_select_and_scatter": "made by merge_moves of a pad and a select_and_scatter",
    "splice": "made by merge_moves of slices and concatenations",
}


class Coverage:
    """Counts the programs that have each op."""

    def __init__(self) -> None:
        self.programs: Counter[str] = Counter()

    def add(self, module: Module) -> None:
        self.programs.update({op.name for op in module.walk()})

    @property
    def missing(self) -> list[str]:
        """Ops that should have been there."""
        return sorted(known_ops() - set(self.programs) - set(UNREACHED))

    def summary(self) -> str:
        reached = len(known_ops() & set(self.programs))
        lines = [f"ops: {reached} of {len(known_ops())} reached"]
        for reason in dict.fromkeys(UNREACHED.values()):
            lines.append(f"  {', '.join(n for n, r in UNREACHED.items() if r == reason)}: {reason}")
        lines += [f"  {name}: not met by chance" for name in self.missing]
        return "\n".join(lines)


def known_ops() -> frozenset[str]:
    return frozenset(TABLE) | CONTROL | OTHERS
