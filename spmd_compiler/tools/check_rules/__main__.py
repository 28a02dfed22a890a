"""`spmd-check-rules [op ...] [--cases N] [--seed N] [--docs FILE]`: exits with 1 if a rule is wrong."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...passes.rules.table import TABLE
from .cases import cases
from .judge import judge
from .page import WHOLE, page, whole_dims


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="spmd-check-rules", description="proves the table of sharding rules"
    )
    parser.add_argument("ops", nargs="*", help="all by default")
    parser.add_argument("--cases", type=int, default=12, help="instances of each op")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", type=Path, help="write the page of the rules there, and check nothing")
    options = parser.parse_args(argv)
    if options.docs:
        options.docs.write_text(page())
        return 0
    table = Table(title="strategies of the rules", box=None)
    for name in ("op", "instances", "checked", "incorrect", "missing"):
        table.add_column(name, justify="left" if name == "op" else "right")
    console, wrong, total = Console(), [], 0
    for op in options.ops or sorted(TABLE):
        instances = list(cases(op, options.cases, options.seed))
        verdicts = [judge(m, options.seed) for m in instances]
        checked = sum(v.checked for v in verdicts)
        incorrect = [text for v in verdicts for text in v.incorrect]
        often = Counter(text for v in verdicts for text in v.missing)
        missing = sorted(text for text, times in often.items() if times > 1)  # once may be chance
        if op not in WHOLE:
            missing += sorted({text for m in instances for text in whole_dims(m)})
        total += checked
        wrong += [f"{op}: {text}" for text in incorrect]
        table.add_row(op, str(len(verdicts)), str(checked), str(len(incorrect)), str(len(missing)))
        for text in missing:
            console.print(f"{op}: has no rule for {text}", markup=False)
    console.print(table)
    for text in wrong:
        console.print(text, markup=False)
    console.print(f"{total} strategies checked, {len(wrong)} incorrect")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
