"""Sharded checkpoints, which restore under another layout and mesh than they were saved under. Needs orbax-checkpoint."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from . import compat
from .constraint import public_layout
from .errors import LayoutError, SpmdError
from .layout import check_storable, is_layout_leaf
from .placement import is_placed
from .prefix import broadcast_prefix


def save(path: str | os.PathLike[str], tree: Any, *, overwrite: bool = False) -> None:
    """Writes a pytree of arrays to the folder `path`; each device's block is written by the process that holds it.
    Raises SpmdError if there is one already, unless `overwrite`."""
    where = os.path.abspath(os.fspath(path))
    if os.path.exists(where) and not overwrite:
        raise SpmdError(f"there is a checkpoint at {where} already; give overwrite=True, or another path")
    with _orbax().StandardCheckpointer() as checkpointer:
        checkpointer.save(where, _in_folder(jax.tree.map(_physical, tree)), force=overwrite)


def restore(path: str | os.PathLike[str], like: Any, layouts: Any = None) -> Any:
    """Reads a checkpoint into the structure, shapes and dtypes of `like` (arrays or `jax.ShapeDtypeStruct`).

    `layouts`: a pytree prefix of `Layout`, PartitionSpec (on the `default_mesh`) or NamedSharding; where it is None,
    the array is laid out as `like` is, or else lies on the default device. Each process reads only the blocks of its
    devices. Raises LayoutError for a layout that doesn't fit, SpmdError if there is no checkpoint.
    """
    where = os.path.abspath(os.fspath(path))
    if not os.path.isdir(where):
        raise SpmdError(f"there is no checkpoint at {where}")
    leaves, tree = jax.tree.flatten(like)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(like)[0]]
    specs = broadcast_prefix(layouts, like, "layouts", is_layout_leaf)
    wanted = [_target(x, spec, f"layouts{p}") for x, spec, p in zip(leaves, specs, paths, strict=True)]
    empty = [0 in w.shape for w in wanted]
    asked = [np.zeros(1, np.int32) if e else w for e, w in zip(empty, wanted, strict=True)]
    with _orbax().StandardCheckpointer() as checkpointer:
        try:
            found = jax.tree.leaves(checkpointer.restore(where, _in_folder(jax.tree.unflatten(tree, asked))))
        except (ValueError, KeyError) as error:
            raise SpmdError(
                f"the checkpoint at {where} does not have the structure of `like`: {error}"
            ) from error
    whole = [
        jax.device_put(np.zeros(w.shape, w.dtype), w.sharding) if e else x
        for x, w, e in zip(found, wanted, empty, strict=True)
    ]
    return jax.tree.unflatten(tree, [_logical(x, y) for x, y in zip(whole, leaves, strict=True)])


def _in_folder(tree: Any) -> Any:
    """A tree of one leaf has a name in the checkpoint: orbax writes no arrays by themselves."""
    return {"array": tree} if jax.tree_util.treedef_is_leaf(jax.tree.structure(tree)) else tree


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise SpmdError("checkpoints need orbax: pip install 'spmd_compiler[checkpoint]'") from None
    return ocp


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and compat.is_extended(x.dtype)


def _physical(x: Any) -> Any:
    """What orbax can write: no keys, no Python numbers, nothing empty."""
    if _is_key(x):
        x = jax.random.key_data(x)
    x = x if isinstance(x, jax.Array) else np.asarray(x)
    return x if x.size else np.zeros(1, np.int32)


def _logical(x: Any, like: Any) -> Any:
    return jax.random.wrap_key_data(x, dtype=like.dtype) if _is_key(like) else x


def _target(leaf: Any, spec: Any, where: str) -> jax.ShapeDtypeStruct:
    struct = compat.struct_of(leaf)
    if spec is not None:
        layout = public_layout(spec, len(struct.shape), where)
        check_storable(layout.ir, where)
        sharding: Any = layout.stored(struct.shape).to_jax()
    elif is_placed(leaf):
        sharding = leaf.sharding
    else:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if not _is_key(leaf):
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding)
    data = jax.eval_shape(jax.random.key_data, struct)
    if isinstance(sharding, NamedSharding):
        dims = [*sharding.spec, *[None] * (len(data.shape) - len(sharding.spec))]
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*dims))
    elif not isinstance(sharding, jax.sharding.SingleDeviceSharding):
        raise LayoutError(f"{where}: give a layout for random keys that lie as {sharding}")
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)
