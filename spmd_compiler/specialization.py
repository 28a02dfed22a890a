"""An `spmd_jit` function for one signature: its arguments' structure, types and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

import jax
from jax.sharding import NamedSharding

from . import compat
from .errors import ArgumentError
from .ir import layout as ir_layout
from .layout import Layout, check_storable, is_layout_leaf, leaf_layout
from .lowered import Lowered
from .memories import comes_from_host, put, type_of
from .mesh import Mesh
from .partitioned import Partitioned
from .passes.pipeline import Options
from .placement import own_layout
from .prefix import broadcast_prefix
from .program import Program, Request, Wanted, call
from .signature import Call
from .tracing import tracing


class Specialization:
    """`key` tells whether two calls may share one. `trace` makes it usable."""

    def __init__(
        self,
        fun: Callable[..., Any],
        arguments: Call,
        mesh: Mesh,
        specs: Sequence[Any],
        out_layouts: Any,
        options: Options,
    ):
        self.mesh = mesh
        self._fun, self._call, self._out_layouts, self._options = fun, arguments, out_layouts, options
        self._structs = [_struct(x, i, arguments) for i, x in enumerate(arguments.leaves)]
        self._wanted = [self._layout(i, spec) for i, spec in enumerate(specs)]
        self._on_host = [
            comes_from_host(leaf, spec) for leaf, spec in zip(arguments.leaves, specs, strict=True)
        ]
        self.key = (
            mesh,
            mesh.axis_types,
            arguments.n_args,
            arguments.slots,
            arguments.tree,
            arguments.statics,
            tuple(type(value) for _, value in arguments.statics),  # 1 is not 1.0
            tuple((s.shape, s.dtype, s.weak_type) for s in self._structs),
            tuple(self._wanted),
            tuple(self._on_host),
            compat.trace_context(),
        )

    def _layout(self, i: int, spec: Any) -> ir_layout.Layout | None:
        leaf, shape, path = self._call.leaves[i], self._structs[i].shape, self._call.paths
        if spec is None:
            layout = own_layout(leaf, self.mesh, path[i])
        else:
            layout = leaf_layout(spec, self.mesh, len(shape), path[i])
        if layout is not None:
            check_storable(layout, path[i])
        return layout

    def trace(self) -> None:
        """Traces the function. Raises what the function raises, and SpmdError for layouts that don't fit its result."""
        arguments, fun, mesh = self._call, self._fun, self.mesh
        notes = [None if w is None else Layout.from_ir(w, mesh) for w in self._wanted]

        @wraps(fun)
        def traced_fun(*args: Any, **kwargs: Any) -> Any:
            with tracing(mesh) as trace:
                for leaf, layout in zip(arguments.signature.bind(args, kwargs).leaves, notes, strict=True):
                    if layout is not None:
                        trace.note(leaf, layout)
                return self._put(fun(*args, **kwargs))

        signature = arguments.signature
        jitted = jax.jit(
            traced_fun,
            static_argnums=tuple(signature.static_nums),
            static_argnames=tuple(signature.static_names),
            keep_unused=True,
        )
        traced, typed = self._traced_on_axes(jitted)
        self._captured = compat.captured_tracers(traced)
        self.is_reusable = not self._captured
        program = Program(traced.jaxpr, signature.fun_name, None if self._captured else traced)
        self.out_info = jax.tree.map(compat.struct_of, traced.out_info)
        self._out_tree = jax.tree.structure(self.out_info)
        free: list[Wanted] = [None] * len(self._captured)
        self.request = Request(
            program,
            mesh,
            (*free, *self._wanted),
            tuple(self._results(traced.out_info, typed)),
            self._options,
        )
        values = jax.tree.unflatten(arguments.tree, self._structs)
        self._call = replace(arguments, leaves=self._structs, values=values)  # lets go of the arrays

    def _traced_on_axes(self, jitted: Any) -> tuple[Any, bool]:
        """What `jitted` is traced to, and whether on the mesh's typed axes. Else these are of type Auto; but JAX refuses there what
        names shardings of types (`out_sharding`, `reshard`), or brings along arrays or a mesh that have such."""
        mesh = self.mesh
        types = list(map(type_of, self._structs, self._on_host))

        def traced_on(axes: jax.sharding.AbstractMesh) -> Any:
            args, kwargs = self._call.rebuild(types)
            with compat.tracing_mesh(axes):
                return jitted.trace(*args, **kwargs)

        try:
            return traced_on(mesh.abstract), False
        except ValueError as error:
            if mesh.axis_types is None or "Auto" not in str(error):
                raise
        for i, (type, wanted) in enumerate(zip(types, self._wanted, strict=True)):
            layout = Layout.from_ir(wanted or ir_layout.Layout.replicated(type.ndim), mesh)
            spec = layout.stored(type.shape).to_jax().spec
            types[i] = type.update(sharding=NamedSharding(mesh.typed, spec))
        return traced_on(mesh.typed), True

    def _put(self, out: Any) -> Any:
        """What the function returns, in the memories that `out_layouts` say."""
        specs = broadcast_prefix(self._out_layouts, out, "out_layouts", is_layout_leaf)
        leaves, tree = jax.tree.flatten(out)
        return jax.tree.unflatten(tree, map(put, leaves, specs))

    def _results(self, out_info: Any, typed: bool) -> list[Wanted]:
        """The layout that is wanted for each result: that of `out_layouts`, else its type's, if it has one."""
        specs = broadcast_prefix(self._out_layouts, out_info, "out_layouts", is_layout_leaf)
        infos = jax.tree_util.tree_flatten_with_path(out_info)[0]
        out: list[Wanted] = []
        for spec, (path, info) in zip(specs, infos, strict=True):
            if spec is None and typed:
                spec = info.sharding
            if spec is None:
                out.append(None)
                continue
            where = "result" + jax.tree_util.keystr(path)
            layout = leaf_layout(spec, self.mesh, len(info.shape), where)
            check_storable(layout, where)
            out.append(layout)
        return out

    @cached_property
    def partitioned(self) -> Partitioned:
        return self.request.compile()

    @cached_property
    def executable(self) -> Any:
        """A `jax.stages.Compiled` of the flat arguments, which returns the function's result."""
        return self.partitioned.compile(self._out_tree, self._call.donated)

    @cached_property
    def _traced(self) -> Any:
        """The program as part of what JAX is tracing. One function, so that JAX keeps what it makes of it."""
        request = replace(self.request, whole=True)

        def run(*xs: Any) -> list[Any]:
            return call(request, *xs)

        run.__name__ = request.program.name
        return jax.jit(run)

    def traced_call(self, leaves: Sequence[Any]) -> Any:
        """The call as part of a function that JAX is tracing: compiled when that is."""
        args = *self._captured, *leaves
        mesh = compat.explicit_mesh(args)
        if mesh is None:
            return jax.tree.unflatten(self._out_tree, self._traced(*args))
        specs = [s.spec for s in self.request.compile().out_shardings]
        run: Any = jax.sharding.auto_axes(self._traced, out_sharding=specs)
        with compat.tracing_mesh(mesh):
            return jax.tree.unflatten(self._out_tree, run(*args))

    def lowered(self) -> Lowered:
        return Lowered(self.partitioned, self._call, self._out_tree, quiet=False)


def _struct(leaf: Any, i: int, arguments: Call) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.Ref):
        raise ArgumentError(
            f"{arguments.paths[i]} is a Ref, which a partitioned program can't write to; pass what it holds, ref[...], and "
            "return what it is to hold"
        )
    try:
        return compat.struct_of(leaf)
    except (TypeError, AttributeError):
        slot = arguments.signature.slot_name(arguments.leaf_slots[i])
        raise ArgumentError(
            f"{arguments.paths[i]} is a {type(leaf).__name__}, not an array; pass numbers or arrays, or name {slot!r} in "
            "static_argnames"
        ) from None
