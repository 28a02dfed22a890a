"""Makes a rule's sharded ways look cheap, so that they are taken also where gathering small data is cheaper."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spmd_compiler.ir.graph import Op
from spmd_compiler.passes.cost import Work
from spmd_compiler.passes.rules import table
from spmd_compiler.passes.rules.base import Rule


@contextmanager
def spread_out(name: str) -> Iterator[None]:
    """The op's own exchanges cost nothing, and its work much."""
    make = table.TABLE[name]

    def cheap(op: Op) -> Rule:
        r = make(op)
        ways = [s._replace(exchange=None) for s in r.strategies]
        return Rule(r.operands, r.results, r.sizes, ways, r.expand, Work(flops=1e9), r.even)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(table.TABLE, name, cheap)
        yield
