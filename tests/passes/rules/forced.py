"""Makes an op's own exchanges free, so that a rule's expansion is taken also where gathering small data is cheaper."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spmd_compiler.ir.graph import Op
from spmd_compiler.passes.rules import table
from spmd_compiler.passes.rules.base import Rule


@contextmanager
def free_exchanges(name: str) -> Iterator[None]:
    make = table.TABLE[name]

    def free(op: Op) -> Rule:
        r = make(op)
        ways = [s._replace(exchange=None) for s in r.strategies]
        return Rule(r.operands, r.results, r.sizes, ways, r.expand, r.work, r.fallback, r.even)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(table.TABLE, name, free)
        yield
