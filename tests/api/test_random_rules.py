"""Random rules: einsums with dims of several factors, several results and reductions, under random layouts."""

import string
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

MESH = spmd.create_mesh([("a", 2), ("b", 2), ("c", 2)])
REDUCE = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}


class Case(NamedTuple):
    """Values are lists of dims, dims lists of factors."""

    operands: list
    results: list
    sizes: dict
    kind: str
    specs: list


def dims(draw, factors):
    """The factors in some order, a few of them joined to one dim."""
    order, out = draw(st.permutations(factors)), []
    for f in order:
        if out and draw(st.integers(0, 3)) == 0:
            out[-1].append(f)
        else:
            out.append([f])
    return out


@st.composite
def rules(draw):
    names = list(string.ascii_lowercase[: draw(st.integers(1, 4))])
    sizes = {f: draw(st.sampled_from([1, 2, 3, 4, 6])) for f in names}

    def some():
        return draw(st.lists(st.sampled_from(names), unique=True, max_size=4))

    first = [*some(), *names]
    operands = [dims(draw, list(dict.fromkeys(first))), *([dims(draw, some())] * draw(st.integers(0, 1)))]
    results = [dims(draw, some()) for _ in range(draw(st.integers(1, 2)))]
    specs = [draw(st.permutations(["a", "b", "c", None, None, None, None])) for _ in operands]
    return Case(operands, results, sizes, draw(st.sampled_from(sorted(REDUCE))), specs)


def spelled(value):
    return " ".join(d[0] if len(d) == 1 else f"({' '.join(d)})" for d in value)


def function(case):
    """Multiplies the operands over all factors, then reduces to each result; by blocks it is the same, whatever part of
    the major factor of a dim there is."""
    names = sorted(case.sizes)

    def run(*args):
        held = dict(case.sizes)
        for x, value in zip(args, case.operands, strict=True):
            for n, d in zip(x.shape, value, strict=True):
                inner = int(np.prod([case.sizes[f] for f in d if f != major(d)]))
                held[major(d)] = n // inner
        product = jnp.ones([held[f] for f in names], jnp.float32)
        for x, value in zip(args, case.operands, strict=True):
            flat = [f for d in value for f in d]
            x = x.reshape([held[f] for f in flat])
            x = x.transpose([flat.index(f) for f in names if f in flat])
            product *= jnp.expand_dims(x, [i for i, f in enumerate(names) if f not in flat])
        return [reduced(product, value, held) for value in case.results]

    def major(d):
        return next((f for f in d if case.sizes[f] > 1), d[0])

    def reduced(x, value, held):
        flat = [f for d in value for f in d]
        x = REDUCE[case.kind](x, axis=[i for i, f in enumerate(names) if f not in flat])
        left = [f for f in names if f in flat]
        x = x.transpose([left.index(f) for f in flat])
        return x.reshape([int(np.prod([held[f] for f in d])) for d in value])

    return run


@given(rules())
@examples(40)
def test_random_rules(case):
    text = f"{', '.join(map(spelled, case.operands))} -> {', '.join(map(spelled, case.results))}"
    run = function(case)
    whole = {f for v in (*case.operands, *case.results) for d in v for f in d}
    sole = {d[0] for v in (*case.operands, *case.results) for d in v if len(d) == 1}
    sizes = {f: case.sizes[f] for f in whole - sole}
    ruled = spmd.sharding_rule(text, reduction=case.kind, **sizes)(run)
    args = [
        np.random.RandomState(i)
        .randint(1, 4, [int(np.prod([case.sizes[f] for f in d])) for d in v])
        .astype(np.float32)
        for i, v in enumerate(case.operands)
    ]
    layouts = tuple(P(*spec[: len(v)]) for spec, v in zip(case.specs, case.operands, strict=True))
    got = spmd.spmd_jit(ruled, mesh=MESH, in_layouts=layouts)(*args)
    jax.tree.map(np.testing.assert_array_equal, got, jax.jit(run)(*args))
