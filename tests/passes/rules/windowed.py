"""Runs a function sharded and on one device, and looks at what the sharded one sends."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

Axes = tuple[tuple[str, int], ...]
MESHES: list[Axes] = [
    (("a", 2),),
    (("a", 3),),
    (("a", 4),),
    (("a", 8),),
    (("a", 2), ("b", 2)),
    (("a", 2), ("b", 3)),
]


def mesh_of(axes: Axes) -> JaxMesh:
    """A mesh on the first devices."""
    sizes = [n for _, n in axes]
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return JaxMesh(devices, [name for name, _ in axes])


@st.composite
def spec_of(draw: st.DrawFn, rank: int, axes: Axes, dims: Sequence[int]) -> P:
    """Every axis on one of `dims`."""
    on: list[list[str]] = [[] for _ in range(rank)]
    for name, _ in axes:
        on[draw(st.sampled_from(dims))].append(name)
    return P(*(tuple(x) if x else None for x in on))


def run(
    fun: Callable[..., Any],
    args: Sequence[np.ndarray],
    axes: Axes,
    specs: Sequence[P],
    out: P | None = None,
    tolerance: float = 2e-4,
    reference: Callable[..., Any] | None = None,
) -> spmd.Lowered:
    """Checks that `fun` gives the same with its arguments laid out so, evenly or not, and the `Lowered` of that.

    Arguments enter replicated and are cut inside the program, since a `jax.Array` can't be cut unevenly. The results are
    laid out as `out` says before they leave, replicated. `reference` computes what is expected, `fun` itself if not given.
    """
    mesh = mesh_of(axes)

    def constrained(*values: Any) -> Any:
        cut = [
            jax.lax.with_sharding_constraint(v, NamedSharding(mesh, s))
            for v, s in zip(values, specs, strict=True)
        ]
        result = fun(*cut)
        return result if out is None else jax.lax.with_sharding_constraint(result, NamedSharding(mesh, out))

    whole = (P(),) * len(args)
    step = spmd.spmd_jit(constrained, mesh=spmd.Mesh.from_jax(mesh), in_layouts=whole, out_layouts=P())
    want, got = jax.jit(reference or fun)(*args), step(*args)
    for w, g in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        w, g = np.asarray(w), np.asarray(g)
        assert w.dtype == g.dtype and w.shape == g.shape
        exact = w.dtype.kind in "biu"
        np.testing.assert_allclose(g, w, rtol=0 if exact else tolerance, atol=0 if exact else tolerance)
    return step.lower(*args)


def gathered(lowered: spmd.Lowered) -> list[Any]:
    """The all-gathers and all-to-alls that make an operand whole."""
    return [
        c for c in lowered.collectives() if c.kind in ("all_gather", "all_to_all") and " needs it" in c.cause
    ]


def sample(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randn(*shape).astype(np.float32)
