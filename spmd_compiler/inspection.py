"""`jax.debug.inspect_array_sharding`, and `visualize_array_sharding`, within programs: what they are told is the layout that the
compiler chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from . import compat
from .ir.graph import Module
from .layout import Layout
from .mesh import Mesh
from .passes.rules.host_calls import INSPECTION, is_inspection

Inspect = Callable[[Any], None]  # takes a sharding
_found: ContextVar[list[Inspect] | None] = ContextVar("inspections", default=None)


@contextmanager
def inspections() -> Iterator[list[Inspect]]:
    """The functions that the program asks with that is lowered meanwhile; a mark in it says by its number which one asks."""
    found: list[Inspect] = []
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def _marker(ins: Any, outs: Any, *, callback: Inspect) -> compat.Marker | None:
    found = _found.get()
    if found is None:
        return None
    found.append(callback)
    return compat.Marker(INSPECTION, str(len(found) - 1), None, callback)


def tell(module: Module, found: list[Inspect], mesh: Mesh) -> None:
    """Tells each function of the layout, but for what is still to be reduced, that its value has in a module with layouts."""
    for op in module.walk():
        if is_inspection(op):
            (value,) = op.operands
            assert value.layout is not None
            layout = Layout.from_ir(value.layout.without_partial(), mesh)
            found[int(op.attrs["backend_config"])](layout.to_jax())


compat.lower_inside(compat.inspect_sharding_p, _marker)
