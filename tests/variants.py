"""The zoo's programs and their variants, as tests look at them."""

from typing import Any

import jax

import spmd_compiler as spmd
from benchmarks import zoo
from benchmarks.more import MORE
from benchmarks.variants import draw


def lowered(name: str, seed: int = 0, abstract: bool = True, **options: Any) -> spmd.Lowered:
    """A variant, or a program of the zoo itself or beside it, partitioned with such options, on an abstract mesh or on CPUs."""
    if "~" in name:
        variant = draw(name, seed)
        axes, built = variant.axes, variant.built
    else:
        case = zoo.CASES.get(name) or MORE[name]
        axes, built = case.mesh, case.build()
    mesh = spmd.create_mesh(axes, abstract=abstract)
    layouts = {"in_layouts": built.in_specs, "out_layouts": built.out_specs}
    program = spmd.spmd_jit(built.fn, mesh=mesh, options=spmd.Options(**options), **layouts)
    return program.lower(*jax.eval_shape(lambda *args: args, *built.args))
