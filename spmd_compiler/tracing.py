"""What is known while a function is being traced into a global program: its mesh, and layouts of some values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from . import compat
from .layout import Layout
from .mesh import Mesh, get_default_mesh


class Trace:
    """A function of `spmd_jit` being traced. Layouts are known for its arguments and for what `relayout` returned."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._known: dict[int, tuple[Any, Layout]] = {}

    def note(self, value: Any, layout: Layout) -> None:
        self._known[id(value)] = (value, layout)  # the value too: its id stays taken

    def layout_of(self, value: Any) -> Layout | None:
        found = self._known.get(id(value))
        return found[1] if found is not None else None


_current: ContextVar[Trace | None] = ContextVar("spmd_trace", default=None)


def current_trace() -> Trace | None:
    return _current.get()


def current_mesh() -> Mesh | None:
    """The mesh of the program being traced, else that of `default_mesh`, else that of `jax.set_mesh`."""
    trace = _current.get()
    mesh = trace.mesh if trace is not None else get_default_mesh()
    outer = compat.context_mesh() if mesh is None else None
    return mesh if outer is None else _from_jax(outer)


_from_jax = lru_cache(Mesh.from_jax)  # asked at each call


@contextmanager
def tracing(mesh: Mesh) -> Iterator[Trace]:
    trace = Trace(mesh)
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)
