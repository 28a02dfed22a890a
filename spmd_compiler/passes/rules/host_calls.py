"""Calls of host functions that give nothing back: those that act, as `jax.debug.print` does, run once, by the first device, on
whole operands; those that only ask for a value's layout (`jax.debug.inspect_array_sharding`) are asked when the program is compiled,
and run nowhere.
"""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from ...ir.layout import PARTIAL_KINDS
from ..emit.builder import Builder
from .base import Rule, Strategy, factored

INSPECTION = "spmd.inspect_sharding"  # our target for calls that ask for a layout


def is_host_call(op: Op) -> bool:
    """Whether a custom call calls a Python function that acts, as JAX names such on any platform."""
    target = op.attrs.get("call_target_name", "")
    acts = op.attrs.get("has_side_effect", False) and not op.results
    return acts and target.startswith("xla_") and target.endswith("_callback")


def is_inspection(op: Op) -> bool:
    return op.name == "custom_call" and op.attrs.get("call_target_name") == INSPECTION


def host_call(op: Op) -> Rule:
    return factored([(None,) * v.type.rank for v in op.operands], [], (), _first_calls)


def inspection(op: Op) -> Rule:
    """Any layout serves, so the answer is what would be there without the question."""
    (value,) = op.operands
    passed = [Strategy((kind,), ()) for kind in PARTIAL_KINDS]
    return factored([tuple(range(value.type.rank))], [], value.type.shape, lambda *_: [], extra=passed)


def _first_calls(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    axes = tuple(axis for axis, size in b.mesh.axes if size > 1)
    if not axes:
        return b.local(op, args)
    calls = Builder.beside(b.mesh, op)
    calls.local(op, args)
    first = b.compare("EQ", b.axis_index(axes), b.index(0))
    return b.multi("if", [first], [], regions=(calls.block, Block([], [], [])))
