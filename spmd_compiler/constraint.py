"""`relayout`: puts a value in another layout, eagerly or as a constraint inside a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from . import compat
from .errors import LayoutError, MeshError
from .ir import layout as ir_layout
from .layout import Layout, LayoutLeaf, check_storable, is_layout_leaf, leaf_layout
from .mesh import Mesh, as_mesh, check_global
from .placement import mesh_of
from .prefix import broadcast_prefix
from .program import insert_dim, padded
from .tracing import current_mesh, current_trace

relayout_p = compat.primitive(
    "spmd_relayout", lambda x, **_: [compat.shaped_array(x.shape, x.dtype, x.weak_type, like=x)]
)


def constrain(x: Any, layout: ir_layout.Layout, mesh: Mesh) -> Any:
    """Binds the primitive: within a program, `x` in `layout`."""
    return relayout_p.bind(x, layout=layout, mesh=mesh)[0]


def relayout(x: Any, layout: Any) -> Any:
    """`x` (a pytree of arrays) in `layout`, which is a pytree prefix of `Layout`, PartitionSpec or NamedSharding.

    Inside an `spmd_jit` function this constrains the value; the layout may be partial there, and need not divide the
    shape. Under a plain `jax.jit` it means `with_sharding_constraint`; on arrays it moves data, to `Layout.stored(shape)`. Raises LayoutError for
    a layout that doesn't fit, MeshError for one on another mesh than the program's.
    """
    values, tree = jax.tree.flatten(x)
    layouts = broadcast_prefix(layout, x, "the layout of relayout", is_layout_leaf)
    return jax.tree.unflatten(tree, [_one(v, leaf) for v, leaf in zip(values, layouts, strict=True)])


def _one(x: Any, leaf: LayoutLeaf | None) -> Any:
    if leaf is None:
        return x
    trace = current_trace()
    mesh = trace.mesh if trace is not None else None
    if mesh is None and isinstance(leaf, jax.sharding.PartitionSpec) and current_mesh() is None:
        mesh = mesh_of([x], ["the array"])
    mesh = mesh or mesh_of_leaf(leaf, "relayout")
    rank = jax.numpy.ndim(x)
    layout = leaf_layout(leaf, mesh, rank, "relayout")
    if len({kind for _, kind in layout.partial}) > 1:
        raise LayoutError(f"relayout to {layout}: partials of two kinds at once have no one meaning")
    _check_kinds(layout, jax.numpy.result_type(x))
    public = Layout.from_ir(layout, mesh)
    if trace is not None and compat.is_tracing():
        out = constrain(jax.numpy.asarray(x) if not isinstance(x, jax.Array) else x, layout, mesh)
        trace.note(out, public)
        return out
    check_storable(layout, "relayout")
    public = public.stored(jax.numpy.shape(x))
    if mesh.is_abstract:
        raise MeshError(f"relayout to {public}: an abstract mesh has no devices")
    if isinstance(x, jax.core.Tracer):
        check_global("relayout")
        return _within_jit(x, public)
    return jax.device_put(x, public.to_jax())


def _check_kinds(layout: ir_layout.Layout, dtype: Any) -> None:
    """Raises LayoutError for a reduction that the type has not."""
    boolean, whole = dtype == np.bool_, jax.numpy.issubdtype(dtype, jax.numpy.integer)
    ordered = not jax.numpy.issubdtype(dtype, jax.numpy.complexfloating)
    for axis, kind in layout.partial:
        bitwise = kind in ("and", "or", "xor")
        if (bitwise and not boolean and not whole) or (kind in ("max", "min") and not ordered):
            raise LayoutError(f"relayout to {layout}: {dtype} has no {kind} to reduce over {axis!r} by")


def public_layout(leaf: LayoutLeaf, rank: int, where: str) -> Layout:
    """What a user gives for a value of `rank` dims as a Layout. Raises LayoutError or MeshError naming `where`."""
    mesh = mesh_of_leaf(leaf, where)
    return Layout.from_ir(leaf_layout(leaf, mesh, rank, where), mesh)


def mesh_of_leaf(leaf: LayoutLeaf, where: str) -> Mesh:
    """The mesh of a layout; of a PartitionSpec the default one. Raises LayoutError for what is no layout."""
    if not isinstance(leaf, LayoutLeaf):
        raise LayoutError(f"{where}: {leaf!r} is no Layout, PartitionSpec or NamedSharding")
    if isinstance(leaf, Layout):
        return leaf.mesh
    if isinstance(leaf, jax.sharding.NamedSharding):
        return Layout.from_jax(leaf, len(leaf.spec)).mesh
    mesh = current_mesh()
    if mesh is None:
        raise MeshError(f"{where}: {leaf} names no mesh; use a Layout, or a default_mesh")
    return mesh


def fixed_mesh(mesh: Any, in_layouts: Any, out_layouts: Any) -> Mesh | None:
    """The mesh that does not depend on the call. Raises MeshError if layouts are on another one."""
    mesh = None if mesh is None else as_mesh(mesh, "mesh=")
    for name, layouts in (("in_layouts", in_layouts), ("out_layouts", out_layouts)):
        for leaf in jax.tree.leaves(layouts, is_leaf=is_layout_leaf):
            if not isinstance(leaf, Layout | jax.sharding.NamedSharding):
                continue
            other = mesh_of_leaf(leaf, name)
            if mesh is None:
                mesh = other
            elif other != mesh and not (mesh.is_abstract != other.is_abstract and mesh.axes == other.axes):
                raise MeshError(
                    f"{name} has a layout on {other!r}, but the mesh is {mesh!r}; one call has one mesh"
                )
    return mesh


def _outside(x: Any, *, layout: ir_layout.Layout, mesh: Mesh) -> list[Any]:
    if layout.partial:
        raise LayoutError(f"relayout to {layout}: partial sums exist only inside an spmd_jit program")
    return [_within_jit(x, Layout.from_ir(layout, mesh).stored(x.shape))]


def _within_jit(x: Any, layout: Layout) -> Any:
    if compat.explicit_mesh([x]) is not None:
        return jax.sharding.reshard(x, layout.to_jax())
    return jax.lax.with_sharding_constraint(x, layout.auto_sharding())


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    (x,), (t,) = primals, tangents
    return relayout_p.bind(x, **params), [None] if t is None else relayout_p.bind(t, **params)


def _transpose(
    cotangents: Sequence[Any], args: Sequence[Any], *, layout: ir_layout.Layout, mesh: Mesh
) -> Any:
    (ct,) = cotangents
    return [None if ct is None else constrain(ct, layout.without_partial(), mesh)]


def _batch(axis: compat.BatchAxis, args: Any, dims: Any, *, layout: ir_layout.Layout, mesh: Mesh) -> Any:
    (x,), (dim,) = args, dims
    axes = tuple(a for a in axis.spmd_axes if a in mesh)
    return relayout_p.bind(x, layout=insert_dim(layout, dim, axes), mesh=mesh), [dim]


compat.register_marker_lowering(
    relayout_p, "spmd.relayout", lambda rank, layout, mesh: str(padded(layout, rank)), outside=_outside
)
compat.register_jvp(relayout_p, _jvp)
compat.register_transpose(relayout_p, _transpose)
compat.register_batching(relayout_p, _batch)
