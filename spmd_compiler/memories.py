"""Where values lie beside their device: in memory of the host that it copies from (`pinned_host`). Arguments and results may lie there;
JAX's types tell such values apart, and `jax.device_put` within a program moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from . import compat
from .ir.memory_kinds import HOST, KIND, lies_on_host
from .placement import is_placed


def is_on_host(x: Any) -> bool:
    """Of a sharding, an array, a `jax.ShapeDtypeStruct`, or the type of a traced value."""
    if isinstance(x, jax.core.ShapedArray):
        return x.memory_space is jax.memory.Space.Host
    sharding = x if isinstance(x, jax.sharding.Sharding) else x.sharding
    return sharding.memory_kind == HOST


def comes_from_host(leaf: Any, spec: Any) -> bool:
    """Whether an argument is to lie there: where its layout says so, which a NamedSharding does; else where it lies."""
    if isinstance(spec, NamedSharding):
        return is_on_host(spec)
    leaf = compat.primal_of(leaf)
    if isinstance(leaf, jax.core.Tracer):
        return is_on_host(jax.typeof(leaf))
    return is_placed(leaf) and is_on_host(leaf)


def type_of(struct: jax.ShapeDtypeStruct, on_host: bool) -> Any:
    """The type of a traced value."""
    return compat.shaped_array(struct.shape, struct.dtype, bool(struct.weak_type), on_host=on_host)


def put(x: Any, spec: Any) -> Any:
    """A traced value in the memory that its layout says, if that is a NamedSharding."""
    if not isinstance(spec, NamedSharding) or is_on_host(spec) == is_on_host(jax.typeof(x)):
        return x
    return jax.device_put(x, jax.memory.Space.Host if is_on_host(spec) else jax.memory.Space.Device)


def mark(attrs: Sequence[dict[str, Any]], on_host: Sequence[bool]) -> None:
    """Has the attributes of arguments or results say so."""
    for each, host in zip(attrs, on_host, strict=True):
        if host:
            each[KIND] = HOST


def placed(sharding: NamedSharding, attrs: dict[str, Any]) -> NamedSharding:
    """The sharding of an argument or result with such attributes."""
    return sharding.with_memory_kind(HOST) if lies_on_host(attrs) else sharding
