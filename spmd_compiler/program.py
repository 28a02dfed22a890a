"""A traced program and its compilation: the jaxpr, layouts in and out, the stages, and how it runs inside `jax.jit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from . import compat
from .errors import LayoutError, UnsupportedError
from .ir import layout as ir_layout
from .ir.exporter import export_module
from .ir.graph import Module
from .ir.importer import import_module
from .ir.layout import is_even, local_type
from .ir.types import TensorType, numpy_dtype
from .layout import refined
from .mesh import Mesh
from .passes.annotate import Annotate
from .passes.pipeline import Options, compile_module

_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print", "outside_call")


class Program:
    """One function on one mesh. `out_layouts[i]` is None where the compiler chooses. Stages are made on first use."""

    def __init__(
        self,
        jaxpr: Any,
        mesh: Mesh,
        in_layouts: Sequence[ir_layout.Layout],
        out_layouts: Sequence[ir_layout.Layout | None],
        options: Options,
        name: str,
    ):
        self.jaxpr = jaxpr
        self.mesh = mesh
        self.in_layouts = tuple(in_layouts)
        self.wanted = tuple(out_layouts)
        self.options = options
        self.name = name
        self._stages: dict[str, Module] | None = None

    @property
    def stages(self) -> dict[str, Module]:
        if self._stages is None:
            check_effects(self.jaxpr.jaxpr)
            mesh = self.mesh.to_jax()
            flat = compat.jaxpr_as_fun(self.jaxpr)

            def program(*args: Any) -> Any:
                return flat(*args)

            program.__name__ = self.name
            fun = jax.jit(program)
            with compat.inside_program():
                lowered = fun.trace(*self.jaxpr.in_avals).lower()
            del mesh
            source: Any = lowered.compiler_ir()
            module = Annotate(self.mesh)(import_module(source, self.mesh))
            main = module.main
            for value, layout in zip(main.body.args, self.in_layouts, strict=True):
                value.layout = layout
            for attrs, layout in zip(main.result_attrs, self.wanted, strict=True):
                attrs.pop("layout", None)
                if layout is not None:
                    attrs["layout"] = layout
            self._stages = compile_module(module, self.options)
        return self._stages

    @property
    def out_layouts(self) -> tuple[ir_layout.Layout, ...]:
        layouts = [v.layout for v in self.stages["propagate"].main.body.returns]
        return tuple(x for x in layouts if x is not None)

    def check_inputs(self, names: Sequence[str]) -> None:
        """Raises LayoutError where an argument's dim is not divided by its axes."""
        for name, aval, layout in zip(names, self.jaxpr.in_avals, self.in_layouts, strict=True):
            type = TensorType(tuple(aval.shape), "i8")
            if not is_even(layout, type, self.mesh):
                raise LayoutError(
                    f"{name}: layout {layout} does not divide shape {list(aval.shape)} on {self.mesh!r}; "
                    "pad the argument, or leave that dim unsharded"
                )

    def run(self, *args: Any) -> list[Any]:
        """The program on (traced) global arrays: a shard_map around the per-device module."""
        mesh, names = refined(self.mesh, [*self.in_layouts, *self.out_layouts])

        def spec(layout: ir_layout.Layout) -> PartitionSpec:
            dims = (tuple(n for a in axes for n in names.get(a, (a,))) for axes in layout.dims)
            return PartitionSpec(*(d if d else None for d in dims))

        local = jax.shard_map(
            lambda *xs: local_p.bind(*xs, program=self),
            mesh=mesh.to_jax(),
            in_specs=tuple(map(spec, self.in_layouts)),
            out_specs=[spec(x) for x in self.out_layouts],
            check_vma=False,
        )
        return local(*args)

    def local_avals(self) -> list[Any]:
        out: list[Any] = []
        for value in self.stages["propagate"].main.body.returns:
            assert value.layout is not None
            type = local_type(value.type, value.layout, self.mesh)
            out.append(compat.shaped_array(type.shape, numpy_dtype(type.dtype)))
        return out


def check_effects(jaxpr: Any) -> None:
    """Raises UnsupportedError for an op that calls back to the host: there is no device it would run for."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _CALLBACKS:
            where = compat.source_line(eqn)
            raise UnsupportedError(
                f"{where}: {eqn.primitive.name} calls back to the host, which a partitioned program can't do; "
                "move it out of the spmd_jit function, or remove it"
            )
        for sub in compat.sub_jaxprs(eqn):
            check_effects(sub)


# ------------------------------------------------------------------------------------------------ primitives
call_p = compat.Primitive("spmd_call")
call_p.multiple_results = True
compat.def_abstract_eval(call_p, lambda *_, program: list(program.jaxpr.out_avals))


def _lower_call(*args: Any, program: Program) -> list[Any]:
    if compat.is_inside_program():  # part of a larger program of ours: inlined, and partitioned with it
        return compat.jaxpr_as_fun(program.jaxpr)(*args)
    return program.run(*args)


compat.register_function_lowering(call_p, _lower_call)
call_p.def_impl(lambda *args, program: jax.jit(lambda *xs: call_p.bind(*xs, program=program))(*args))

local_p = compat.Primitive("spmd_local")
local_p.multiple_results = True
compat.def_abstract_eval(local_p, lambda *_, program: program.local_avals())
# Dense groups: with several meshes in one module XLA looks up mesh axes in the wrong one.
compat.register_module_lowering(
    local_p,
    lambda context, program: export_module(program.stages["optimize"], context=context, groups="dense"),
)
