"""Random programs in IR: ops of the whole table, regions, layouts on arguments, results and values between.

In an exact program floats hold small integers, which every order of summation adds up to the same: its results are
compared bit by bit. Others have all kinds of ops and numbers, and round.
"""

from __future__ import annotations

import random

import numpy as np

from ...ir.graph import Block, Dense, Function, Module, Op, Value
from ...ir.layout import Layout, is_even
from ...ir.mesh import Mesh, parse_axis, split_axis
from ...ir.optable import ASKED
from ...ir.types import numpy_dtype
from .kinds import EXACT_KINDS, ROUNDING_KINDS, fill
from .rounding import EXACT
from .scope import COMPLEX, DTYPES, Scope, tensor

MESHES: tuple[tuple[int, ...], ...] = (
    *((1,), (2,), (3,), (4,), (5,), (6,), (7,), (8,)),
    *((2, 2), (4, 2), (2, 3), (3, 1), (1, 2), (2, 4), (5, 2)),
    *((2, 2, 2), (3, 2, 2), (2, 1, 3), (1, 4, 2)),
)
LENGTHS = (6, 10, 20, 60)  # most ops of a program; short ones try more layouts in the same time
# Ops whose results are exact wherever sums and products are.
_ROUNDS_NOT = EXACT | {
    "add",
    "call",
    "case",
    "chlo.is_inf",
    "chlo.is_neg_inf",
    "chlo.is_pos_inf",
    "chlo.square",
    "composite",
    "constant",
    "convert",
    "convolution",
    "count_leading_zeros",
    "dot_general",
    "if",
    "multiply",
    "optimization_barrier",
    "popcnt",
    "reduce",
    "reduce_window",
    "relayout",
    "rng_bit_generator",
    "scatter",
    "select_and_scatter",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "subtract",
    "while",
}


def layout(rng: random.Random, rank: int, mesh: Mesh, density: float = 0.8) -> Layout:
    """Random axes on random dims, sometimes pieces of an axis on two of them."""
    axes: list[str] = []
    for axis, n in rng.sample(mesh.axes, len(mesh.axes)):
        cuts = [k for k in range(2, n) if n % k == 0]
        axes += split_axis(mesh, axis, rng.choice(cuts)) if cuts and rng.random() < 0.15 else [axis]
    dims: list[tuple[str, ...]] = [()] * rank
    for axis in axes:
        if rank and rng.random() < density:
            d = rng.randrange(rank)
            dims[d] += (axis,)
    return Layout(tuple(dims))


def with_partial(rng: random.Random, layout: Layout, dtype: str, mesh: Mesh) -> Layout:
    """The layout, sometimes with the mesh axes that it does not use as a partial of one kind."""
    used = {parse_axis(a)[0] for a in layout.axes}
    free = [a for a in mesh.shape if a not in used and rng.random() < 0.7]
    kinds = ["or", "and"] if dtype == "i1" else ["sum"] if dtype in COMPLEX else ["sum", "sum", "max", "min"]
    if not free or rng.random() < 0.4 or dtype not in DTYPES:
        return layout
    kind = rng.choice(kinds)
    return layout.with_partial((a, kind) for a in free)


def program(seed: int, exact: bool = True) -> Module:
    """A module with layouts on its arguments and some results, as it enters the passes."""
    rng = random.Random(seed if exact else f"rounds {seed}")
    sizes = rng.choice(MESHES)
    mesh = Mesh(list(zip("abc", sizes, strict=False)))
    args = [Value(tensor(rng), None, f"x{i}") for i in range(rng.randint(1, 4))]
    for v in args:
        v.layout = layout(rng, v.type.rank, mesh)
    body = Block(args, [], [])
    functions: dict[str, Function] = {}
    scope = Scope(rng, body, exact=exact, functions=functions)

    for v in args:  # what lies outside can't be cut unevenly: only a value inside can
        assert v.layout is not None
        if not is_even(v.layout, v.type, mesh):
            cut = Value(v.type, v.layout)
            body.ops.append(Op("relayout", [v], [cut], {"cause": ASKED}))
            scope.values.append(cut)
            scope.bound[cut] = scope.bound[v]

    def pin() -> None:
        if rng.random() < 0.08 and (v := scope.array()) is not None:
            pinned = Value(v.type, with_partial(rng, layout(rng, v.type.rank, mesh), v.type.dtype, mesh))
            body.ops.append(Op("relayout", [v], [pinned], {"cause": ASKED}))
            scope.values.append(pinned)
            scope.bound[pinned] = scope.bound[v]

    fill(scope, rng.randint(3, rng.choice(LENGTHS)), EXACT_KINDS if exact else ROUNDING_KINDS, pin)
    made = {v for op in body.ops for v in op.results}
    used = {v for op in body.ops for v in op.operands}
    ends = [v for v in scope.values if v in made and v not in used] or scope.values[-1:]
    body.returns = rng.sample(ends, min(len(ends), rng.randint(1, 6)))
    attrs = [{"layout": layout(rng, v.type.rank, mesh)} if rng.random() < 0.6 else {} for v in body.returns]
    return Module(mesh, {"main": Function("main", body, True, None, attrs), **functions})


def is_exact(module: Module) -> bool:
    """Whether nothing in the module can round, as its ops and constants tell."""
    return all(
        (op.name in _ROUNDS_NOT or all(v.type.dtype[0] in "iu" for v in op.results))
        and all(_is_whole(value) for value in op.attrs.values() if isinstance(value, Dense))
        for op in module.walk()
    )


def _is_whole(value: Dense) -> bool:
    array = value.array
    if array.dtype.kind in "iub":
        return True
    wide = array.astype(np.complex128)
    finite = wide[np.isfinite(wide)]
    return bool((finite == np.rint(finite)).all())


def arguments(module: Module, seed: int = 0) -> list[np.ndarray]:
    """Small numbers of each argument's type: integers, or where the module rounds anyway any."""
    state, exact = np.random.RandomState(seed), is_exact(module)
    return [_numbers(state, v.type.shape, numpy_dtype(v.type.dtype), exact) for v in module.main.body.args]


def _numbers(
    state: np.random.RandomState, shape: tuple[int, ...], dtype: np.dtype, exact: bool
) -> np.ndarray:
    if dtype == np.bool_:
        return np.asarray(state.randint(0, 2, shape) > 0)
    whole = exact or dtype.kind in "iu"
    low = 0 if dtype.kind == "u" else -4
    return np.asarray(state.randint(low, 5, shape) if whole else state.uniform(-4, 4, shape)).astype(dtype)
