"""Conformance of the whole compiler: a harness case under random layouts gives what `jax.jit` gives on one device."""

from __future__ import annotations

import math
import re
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import spmd_compiler as spmd
from benchmarks.conformance import Case, Skip, arrays, first_line

DEVICES = 8
MESH = (("a", 2), ("b", 2), ("c", 2))
TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "float32": 2e-4, "complex64": 2e-4, "float16": 2e-2}


def spmd_check(case: Case, seed: int) -> str:
    """ "same result", with how it ran if there is something to say, or "different: …"."""
    lowered, args = case.lower()
    try:
        expected = lowered.compile()(*args)
    except Exception as error:
        raise Skip(f"does not run: {type(error).__name__}: {first_line(error)}") from error
    mesh = spmd.create_mesh(MESH)
    rng = np.random.RandomState(zlib.crc32(f"{case.name}{seed}".encode()))
    leaves, tree = jax.tree.flatten(tuple(args))
    specs = [random_spec(np.shape(x), rng, even=True) for x in leaves]
    uneven: list[PartitionSpec | None] = [
        random_spec(np.shape(x), rng, even=False) if rng.rand() < 0.5 else None for x in leaves
    ]

    if not any(map(_shards, specs)) and all(s is None for s in uneven):
        uneven = [random_spec(np.shape(x), rng, even=False) for x in leaves]
    uneven = [s if _shards(s) else None for s in uneven]  # one that says "whole" asks for a gather

    def constrained(*values: Any) -> Any:
        xs = [
            x if s is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh.to_jax(), s))
            for x, s in zip(jax.tree.leaves(values), uneven, strict=True)
        ]
        return case.function(*jax.tree.unflatten(tree, xs))

    step = spmd.spmd_jit(constrained, mesh=mesh, in_layouts=jax.tree.unflatten(tree, specs))
    problem = difference(expected, step(*args))
    if problem:
        return f"different: {problem} under {specs} then {uneven}"
    if not any(map(_shards, [*specs, *uneven])):
        return "same result, no dim to shard"
    return "same result" + manner(step.lower(*args).explain())


def _shards(spec: PartitionSpec | None) -> bool:
    return spec is not None and any(spec)


# Operands that an op has to read whole, wherever they lie, and why.
BY_DEFINITION = {
    ("gather", "1"): "an index may name any position",
    ("scatter", "1"): "an index may name any position",
    ("scatter", "2"): "an update goes where its index says",
    ("dynamic_update_slice", "1"): "the update may fall on any device",
    ("custom_call", "0"): "a kernel factors whole matrices",
    ("custom_call", "1"): "a kernel solves with whole matrices",
    ("convolution", "1"): "every position of a sharded batch or image reads the whole kernel",
    ("cholesky", "0"): "each number depends on all before it",
    ("triangular_solve", "0"): "each unknown depends on those before it",
    ("triangular_solve", "1"): "each unknown depends on those before it",
}


def manner(told: str) -> str:
    """How a program ran, from what `explain()` tells: ", with a fallback", ", an operand gathered …" or ""."""
    if any(
        not call.startswith("custom_call @lapack_")
        for call in re.findall(r"^fallback: (.*) runs", told, re.M)
    ):
        return ", with a fallback"
    rows = re.findall(
        r"^gathered: (\S+) reads the whole of operand (\d+), \w+\[([\d,]*)\]", told, re.MULTILINE
    )
    large = [(op, i) for op, i, shape in rows if math.prod(map(int, shape.split(","))) > DEVICES]
    if avoidable := [op for op, i in large if (op, i) not in BY_DEFINITION]:
        return f", an operand gathered for {avoidable[0]}"
    return ", an operand gathered by definition" if large else ", a few numbers gathered" if rows else ""


def random_spec(shape: tuple[int, ...], rng: np.random.RandomState, even: bool) -> PartitionSpec:
    """Each axis on a random dim of size 2 or more (that it divides, if `even`), or on none."""
    dims: list[list[str]] = [[] for _ in shape]
    sizes = [1] * len(shape)
    for k in rng.permutation(len(MESH)):
        axis, n = MESH[k]
        fits = [d for d, size in enumerate(shape) if size > 1 and (not even or size % (sizes[d] * n) == 0)]
        if fits and rng.rand() < 0.8:
            d = fits[rng.randint(len(fits))]
            dims[d].append(axis)
            sizes[d] *= n
    return PartitionSpec(*(tuple(d) if d else None for d in dims))


def difference(expected: Any, actual: Any) -> str:
    """ "" if both agree to rounding, else what differs."""
    for i, (a, b) in enumerate(zip(arrays(expected), arrays(actual), strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} is {b.dtype}{b.shape}, not {a.dtype}{a.shape}"
        if a.tobytes() == b.tobytes():
            continue
        if a.dtype.kind in "biu":
            return f"result {i}: {np.sum(a != b)} of {a.size} integers differ"
        tol = TOLERANCE.get(a.dtype.name, 0.15)
        wide = "complex128" if jnp.issubdtype(a.dtype, jnp.complexfloating) else "float64"
        x, y = a.astype(wide), b.astype(wide)
        scale = np.max(np.abs(x[np.isfinite(x)]), initial=0.0)
        with np.errstate(all="ignore"):
            if not np.allclose(x, y, rtol=tol, atol=tol * (scale + 1e-6), equal_nan=True):
                return f"result {i}: largest difference {np.nanmax(np.abs(x - y)):.3g} of {scale:.3g}"
    return ""
