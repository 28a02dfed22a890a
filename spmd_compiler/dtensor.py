"""TensorFlow DTensor's functions over `jax.Array`: eager, and inside `spmd_jit` functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from .constraint import mesh_of_leaf, public_layout, relayout
from .errors import ArgumentError, LayoutError, MeshError
from .jit import spmd_jit
from .layout import Layout, LayoutLeaf, check_storable, leaf_layout
from .mesh import Mesh
from .tracing import current_trace


def copy_to_mesh(tensor: Any, layout: Any) -> Any:
    """A number, numpy array or array, or a pytree of these, as arrays in `layout`, which is a prefix of it. Inside programs the same
    as `relayout`. Raises LayoutError without a layout."""
    if layout is None:
        raise LayoutError("copy_to_mesh: give a layout")
    return relayout(jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(x), tensor), layout)


def relayout_like(tensor: Any, layout_tensor: Any) -> Any:
    """`tensor` in the layout of `layout_tensor`."""
    return relayout(tensor, fetch_layout(layout_tensor))


def is_dtensor(tensor: Any) -> bool:
    """True for an array whose layout is known: it lies on a mesh."""
    return _layout_of(tensor) is not None


def fetch_layout(tensor: Any) -> Layout:
    """The layout of an array. Inside a program it is known for arguments and for what `relayout` returned. Raises
    LayoutError where there is none."""
    layout = _layout_of(tensor)
    if layout is None:
        if isinstance(tensor, jax.core.Tracer):
            raise LayoutError(
                "inside a program the compiler chooses the layout of this value; give it one with relayout"
            )
        raise LayoutError(f"{_kind(tensor)} lies on no mesh; put it there with copy_to_mesh")
    return layout


def check_layout(tensor: Any, layout: LayoutLeaf) -> None:
    """Raises LayoutError if `tensor` is not in `layout`; a PartitionSpec is one on the array's own mesh."""
    found = fetch_layout(tensor)
    wanted = Layout.from_ir(leaf_layout(layout, found.mesh, found.rank, "check_layout"), found.mesh)
    if found != wanted:
        raise LayoutError(f"the array is in {found}, not in {wanted}")


def _layout_of(tensor: Any) -> Layout | None:
    trace = current_trace()
    if trace is not None:
        known = trace.layout_of(tensor)
        if known is not None:
            return known
    if isinstance(tensor, jax.core.Tracer) or not isinstance(tensor, jax.Array):
        return None
    sharding = tensor.sharding
    return Layout.from_jax(sharding, tensor.ndim) if isinstance(sharding, NamedSharding) else None


def _kind(x: Any) -> str:
    return f"a {type(x).__name__}"


def pack(tensors: Sequence[Any], layout: LayoutLeaf) -> jax.Array:
    """One array in `layout` from the blocks of this process' devices, one per device in the mesh's order (replicas
    too). Raises ArgumentError for another number of blocks, or blocks of different shapes or dtypes."""
    if not np.iterable(tensors):
        raise ArgumentError(f"pack: {tensors!r} is no sequence of blocks, one per device")
    layout = public_layout(layout, np.ndim(tensors[0]) if len(tensors) else 0, "pack")
    mesh = _mesh_with_devices(layout, "pack")
    devices = _local(mesh)
    if len(tensors) != len(devices):
        raise ArgumentError(f"pack: {len(tensors)} blocks for the {len(devices)} devices of {mesh!r} here")
    blocks = [t if isinstance(t, jax.Array) else np.asarray(t) for t in tensors]
    kinds = {(tuple(b.shape), np.dtype(b.dtype).name) for b in blocks}
    if len(kinds) > 1:
        raise ArgumentError(f"pack: blocks of one array have one shape and dtype, not {sorted(kinds)}")
    shape = layout.global_shape_from_local_shape(blocks[0].shape)
    check_storable(layout.ir, "pack")
    if any(isinstance(b, jax.core.Tracer) for b in blocks):
        return relayout(_assembled(blocks, layout), layout)
    placed = [jax.device_put(b, d) for b, d in zip(blocks, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(shape, layout.to_jax(), placed)


def _assembled(blocks: Sequence[Any], layout: Layout) -> jax.Array:
    """Inside a program: the global array of these blocks."""
    grid = [range(layout.num_shards(d)) for d in range(layout.rank)]
    holders: dict[tuple[int, ...], Any] = {}
    for device, block in enumerate(blocks):
        holders.setdefault(_block_index(layout, device), block)

    def join(prefix: tuple[int, ...]) -> Any:
        dim = len(prefix)
        if dim == layout.rank:
            return holders[prefix]
        parts = [join((*prefix, k)) for k in grid[dim]]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=dim)

    return join(())


def _block_index(layout: Layout, device: int) -> tuple[int, ...]:
    """Which block of each dim lies on a device of the mesh."""
    out: list[int] = []
    for axes in layout.ir.dims:
        index = 0
        for axis in axes:
            stride, size = layout.mesh.stride_and_size(axis)
            index = index * size + device // stride % size
        out.append(index)
    return tuple(out)


def unpack(tensor: Any) -> list[jax.Array]:
    """The blocks of an array on this process' devices, one per device in the mesh's order: the inverse of `pack`."""
    layout = fetch_layout(tensor)
    mesh = _mesh_with_devices(layout, "unpack")
    if isinstance(tensor, jax.core.Tracer):
        check_storable(layout.ir, "unpack")
        layout = layout.stored(tensor.shape)
        local = layout.local_shape_from_global_shape(tensor.shape)
        return [
            jax.lax.slice(
                tensor,
                [i * n for i, n in zip(index, local, strict=True)],
                [(i + 1) * n for i, n in zip(index, local, strict=True)],
            )
            for index in (_block_index(layout, k) for k in range(mesh.size))
        ]
    by_device = {shard.device: shard.data for shard in tensor.addressable_shards}
    return [by_device[d] for d in _local(mesh)]


def _local(mesh: Mesh) -> list[Any]:
    assert mesh.devices is not None
    return [d for d in mesh.devices if d.process_index == jax.process_index()]


def _mesh_with_devices(layout: Layout, what: str) -> Mesh:
    if layout.mesh.devices is None:
        raise MeshError(f"{what}: {layout.mesh!r} is abstract, it has no devices")
    return layout.mesh


def call_with_layout(fn: Callable[..., Any], layout: Any, *args: Any, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)` with its result (a pytree, `layout` a prefix of it) in `layout`, each device making its own
    block. `layout` None: a plain call. Arguments that are no arrays are constants of the program. `fn` is traced as by `jax.jit`,
    and kept: what it reads beside its arguments is fixed at the first call. Raises ArgumentError for what can't be called."""
    if not callable(fn):
        raise ArgumentError(f"call_with_layout: {fn!r} can't be called")
    if layout is None:
        return fn(*args, **kwargs)
    if current_trace() is not None:
        return relayout(fn(*args, **kwargs), layout)
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_array = tuple(isinstance(x, (jax.Array, np.ndarray)) for x in leaves)
    arrays = [x for x, a in zip(leaves, is_array, strict=True) if a]
    constants = tuple(x for x, a in zip(leaves, is_array, strict=True) if not a)
    layouts, layout_tree = jax.tree.flatten(layout)
    if not layouts:
        return fn(*args, **kwargs)
    key = (
        fn,
        mesh_of_leaf(layouts[0], "call_with_layout"),
        tuple(layouts),
        layout_tree,
        tree,
        is_array,
        constants,
        tuple(map(type, constants)),
    )
    try:
        made = _made(*key)
    except TypeError:  # something can't be hashed
        made = _made.__wrapped__(*key)
    return made(*arrays)


@functools.lru_cache(maxsize=256)
def _made(
    fn: Callable[..., Any],
    mesh: Mesh,
    layouts: tuple[LayoutLeaf, ...],
    layout_tree: Any,
    tree: Any,
    is_array: tuple[bool, ...],
    constants: tuple[Any, ...],
    types: tuple[type, ...],
) -> Callable[..., Any]:
    del types  # for the cache, which takes 1, 1.0 and True for equal

    def call(*arrays: Any) -> Any:
        given, fixed = iter(arrays), itertools.chain(constants)
        args, kwargs = jax.tree.unflatten(tree, [next(given if a else fixed) for a in is_array])
        return fn(*args, **kwargs)

    call.__name__ = getattr(fn, "__name__", "call_with_layout")
    return spmd_jit(call, mesh=mesh, out_layouts=jax.tree.unflatten(layout_tree, layouts))
