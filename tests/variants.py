"""The zoo's programs and their variants, as tests look at them."""

import jax

import spmd_compiler as spmd
from benchmarks import zoo
from benchmarks.variants import draw


def lowered(name: str, seed: int = 0, hardware: str | None = None) -> spmd.Lowered:
    """A variant, or a program of the zoo itself, on an abstract mesh, partitioned; for a hardware model, if one is given."""
    if "~" in name:
        variant = draw(name, seed)
        axes, built = variant.axes, variant.built
    else:
        axes, built = zoo.CASES[name].mesh, zoo.CASES[name].build()
    mesh, options = spmd.create_mesh(axes, abstract=True), spmd.Options(hardware=hardware)
    layouts = {"in_layouts": built.in_specs, "out_layouts": built.out_specs}
    program = spmd.spmd_jit(built.fn, mesh=mesh, options=options, **layouts)
    return program.lower(*jax.eval_shape(lambda *args: args, *built.args))
