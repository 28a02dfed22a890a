"""Pytree prefixes, with errors that say where a prefix stops fitting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import keystr

from .errors import ArgumentError


def broadcast_prefix(prefix: Any, tree: Any, where: str, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """The leaf of `prefix` above each leaf of `tree`, in order. Raises ArgumentError with the path at which the two
    differ, or at which `prefix` has something that is no leaf."""
    out: list[Any] = []
    _walk(prefix, tree, where, is_leaf, out)
    return out


def _walk(prefix: Any, tree: Any, where: str, is_leaf: Callable[[Any], bool], out: list[Any]) -> None:
    if is_leaf(prefix):
        out += [prefix] * jax.tree.structure(tree).num_leaves
        return
    inner, treedef = _children(prefix)
    if treedef is None:
        several = "" if _children(tree)[1] is None else f", or a {_kind(tree)} of those"
        raise ArgumentError(
            f"{where} is {prefix!r}: give a Layout, PartitionSpec, NamedSharding or None{several}"
        )
    below, below_def = _children(tree)
    if below_def is None:
        raise ArgumentError(
            f"{where} is a {_kind(prefix)}, but what it describes is one array: give one layout for it"
        )
    if treedef != below_def:
        theirs, mine = [p for p, _ in below], [p for p, _ in inner]
        missing = [keystr(p) for p in theirs if p not in mine]
        extra = [keystr(p) for p in mine if p not in theirs]
        detail = f"; it lacks {', '.join(missing[:5])}" if missing else ""
        detail += f"; it has {', '.join(extra[:5])} too many" if extra else ""
        raise ArgumentError(
            f"{where} is a {_kind(prefix)} with {len(mine)} entries, but what it describes is a {_kind(tree)} with "
            f"{len(theirs)}{detail}"
        )
    for (path, child), (_, sub) in zip(inner, below, strict=True):
        _walk(child, sub, where + keystr(path), is_leaf, out)


def _children(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children one level down with their paths; no structure for a leaf."""
    if tree is None:
        return [], jax.tree.structure(None)
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    return ([], None) if len(pairs) == 1 and pairs[0][1] is tree else (pairs, treedef)


def _kind(tree: Any) -> str:
    return type(tree).__name__
