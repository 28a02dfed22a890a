"""Variants of the zoo's programs, as tests look at them."""

import jax

import spmd_compiler as spmd
from benchmarks.variants import draw


def lowered(name: str, seed: int = 0) -> spmd.Lowered:
    """A variant on an abstract mesh, partitioned."""
    variant = draw(name, seed)
    built, mesh = variant.built, spmd.create_mesh(variant.axes, abstract=True)
    program = spmd.spmd_jit(built.fn, mesh=mesh, in_layouts=built.in_specs, out_layouts=built.out_specs)
    return program.lower(*jax.eval_shape(lambda *args: args, *built.args))
