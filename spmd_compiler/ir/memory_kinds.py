"""What of a program lies in memory of the host that devices copy from, as JAX's attributes say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .graph import Module, Op, Raw, Value

HOST = "pinned_host"
KIND = "mhlo.memory_kind"  # the attribute of arguments and results


def is_placement(op: Op) -> bool:
    """Whether a custom call says in which memory its operand is to lie."""
    return op.attrs.get("call_target_name") == "annotate_device_placement"


def lies_on_host(attrs: dict[str, Any]) -> bool:
    """Whether attributes of an argument or result say so."""
    return attrs.get(KIND) == HOST


def host_values(module: Module) -> Iterator[Value]:
    """Arguments that lie there, and what is put there."""
    main = module.main
    for value, attrs in zip(main.body.args, main.arg_attrs, strict=True):
        if lies_on_host(attrs):
            yield value
    for op in module.walk():
        if op.name == "custom_call" and is_placement(op):
            where = op.attrs.get("mhlo.frontend_attributes")
            if isinstance(where, Raw) and HOST in where.text:
                yield op.results[0]
