"""A traced function, and the request to partition it: what to compile, for which mesh and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from . import compat
from .errors import LayoutError, MeshError, UnsupportedError
from .inspection import Inspect, inspections, tell
from .ir.graph import Module
from .ir.importer import import_module
from .ir.layout import Layout
from .layout import stored_layout
from .local_units import local_units
from .memories import is_on_host, mark, type_of
from .mesh import Mesh
from .partitioned import Partitioned
from .passes.annotate import Annotate
from .passes.pipeline import Options, compile_module
from .primitive_rules import lower_primitives
from .refinement import Refinement
from .target_rules import target_rules

_EFFECTS = ("io_callback", "infeed", "outfeed")
# on TPUs pairs of transfers, which no rule has
_CALLBACKS = ("debug_callback", "debug_print", "pure_callback")


class Program:
    """A jaxpr with its name, and how it lowers to StableHLO. `traced` saves a retrace where the jaxpr came from one."""

    def __init__(self, jaxpr: Any, name: str, traced: Any = None):
        self.jaxpr = jaxpr
        self.name = name
        self._traced = traced
        self.ins = tuple(_struct(a) for a in jaxpr.in_avals)
        self.outs = tuple(_struct(a) for a in jaxpr.out_avals)
        self.ins_on_host = tuple(map(is_on_host, jaxpr.in_avals))
        self.outs_on_host = tuple(map(is_on_host, jaxpr.out_avals))
        self.run: Callable[..., list[Any]] = compat.jaxpr_as_fun(jaxpr)
        self.derived: dict[Any, Any] = {}  # its derivatives and batched forms, see `transforms`
        self.compiled: dict[Request, Partitioned] = {}

    @classmethod
    def trace(cls, function: Callable[..., Any], args: Sequence[Any], mesh: Mesh, name: str) -> Program:
        """Traces `function(*args) -> list` for arguments like these."""
        with compat.tracing_mesh(mesh.abstract):
            return cls(jax.make_jaxpr(function)(*args), name)

    def check_effects(self, platform: str) -> None:
        """Raises UnsupportedError for what calls the host but can't in a partitioned program. A pure callback may run on any device,
        and one that only acts, as `jax.debug.print`, runs on the first."""
        for eqn in compat.equations(self.jaxpr):
            why = _calls_host_so(eqn, platform)
            if why is not None:
                raise UnsupportedError(
                    f"{compat.source_line(eqn)}: {eqn.primitive.name} calls back to the host{why}, which a partitioned "
                    "program can't do; move it out of the spmd_jit function, or remove it"
                )

    def check_sizes(self) -> None:
        """Raises UnsupportedError for symbolic sizes, as `jax.export` may have: layouts cut dims of known ones."""
        for struct in (*self.ins, *self.outs):
            if not all(isinstance(size, int) for size in struct.shape):
                raise UnsupportedError(
                    f"{self.name}: an array of the symbolic shape {struct.shape}; a partitioned program is compiled for known sizes"
                )

    def import_on(self, mesh: Mesh) -> tuple[Module, list[Any], list[Inspect]]:
        """The program as IR, with the layouts that it constrains values to, the host functions that it calls, and those that it asks
        for layouts with."""
        lower_primitives()
        with compat.tracing_mesh(mesh.abstract), compat.inside_program(mesh), inspections() as asking:
            traced = self._traced
            if traced is None:

                def run(*args: Any) -> list[Any]:
                    return self.run(*args)

                run.__name__ = self.name
                traced = jax.jit(run, keep_unused=True).trace(*map(type_of, self.ins, self.ins_on_host))
            platform = compat.lowering_platform(mesh.devices, mesh.abstract_device)
            lowered = traced.lower(lowering_platforms=(platform,))
        source: Any = lowered.compiler_ir()
        module = Annotate(mesh, target_rules())(import_module(source, mesh))
        return module, list(compat.host_callbacks(lowered)), asking


def _calls_host_so(eqn: Any, platform: str) -> str | None:
    """How an equation calls the host, if that is a way in which it can't."""
    name = eqn.primitive.name
    if name.startswith(_EFFECTS):
        return " and waits for an answer" if name == "io_callback" else ""
    if compat.is_ordered(eqn):
        return " in an order (ordered=True)"
    if eqn.params.get("partitioned"):
        return " with each device's part (partitioned=True)"
    return " from a TPU" if name.startswith(_CALLBACKS) and platform == "tpu" else None


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


@dataclass(frozen=True)
class Chosen:
    """The layout that the compiler chooses for a result of another request. `batched`: dims inserted since, each with
    its mesh axes."""

    request: Request
    index: int
    batched: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def resolve(self) -> Layout:
        layout = self.request.compile().out_layouts[self.index]
        for dim, axes in self.batched:
            layout = insert_dim(layout, dim, axes)
        return layout


Wanted = Layout | Chosen | None


def insert_dim(layout: Layout, dim: int, axes: tuple[str, ...]) -> Layout:
    """The layout with one more dim, on those of `axes` that it doesn't use."""
    free = tuple(a for a in axes if a not in layout.axes)
    return Layout((*layout.dims[:dim], free, *layout.dims[dim:]), layout.partial)


def batched(wanted: Wanted, dim: int | None, axes: tuple[str, ...]) -> Wanted:
    if dim is None or wanted is None:
        return wanted
    if isinstance(wanted, Chosen):
        return replace(wanted, batched=(*wanted.batched, (dim, axes)))
    return insert_dim(wanted, dim, axes)


@dataclass(frozen=True, repr=False)
class Request:
    """A program, its mesh, and a layout per argument and result. None: for an argument replicated (free, where the
    program becomes part of a larger one); for a result the compiler's choice. whole: of whole axes. JAX can't say of what leaves a
    `jax.jit` that it lies on pieces of them."""

    program: Program
    mesh: Mesh
    ins: tuple[Wanted, ...]
    outs: tuple[Wanted, ...]
    options: Options
    whole: bool = False

    def __post_init__(self) -> None:
        fields = (self.program, self.mesh, self.ins, self.outs, self.options, self.whole)
        object.__setattr__(self, "_hash", hash(fields))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        """As jaxprs show it."""
        sides = ("(" + ", ".join(map(str, side)) + ")" for side in (self.ins, self.outs))
        return f"{self.program.name} on {self.mesh!r}: {' -> '.join(sides)}"

    def compile(self) -> Partitioned:
        """The partitioned program; made once."""
        made = self.program.compiled.get(self)
        if made is None:
            made = self.program.compiled[self] = self._compile_whole() if self.whole else _compile(self)
        return made

    def _compile_whole(self) -> Partitioned:
        made = replace(self, whole=False).compile()
        pieces = any(x.has_pieces for x in made.out_layouts)
        return self._on_whole_axes(made.out_layouts).compile() if pieces else made

    def _on_whole_axes(self, outs: Sequence[Layout]) -> Request:
        """Asks for results in layouts without the pieces of axes there."""
        whole = tuple(x.drop(a for a in x.axes if ":" in a) for x in outs)
        return replace(self, outs=whole, whole=False)


def _compile(request: Request) -> Partitioned:
    program, mesh = request.program, request.mesh
    program.check_effects(compat.lowering_platform(mesh.devices, mesh.abstract_device))
    program.check_sizes()
    ins = [_input(w, s) for w, s in zip(request.ins, program.ins, strict=True)]
    stored = [stored_layout(x, s.shape, mesh) for x, s in zip(ins, program.ins, strict=True)]
    outs = [_output(w, s) for w, s in zip(request.outs, program.outs, strict=True)]
    stages, callbacks = _run_passes(request, ins, outs)
    made = _result_layouts(stages, program.outs)
    chosen = [_as_asked(x, w, s.shape, mesh) for x, w, s in zip(made, outs, program.outs, strict=True)]
    if not _has_arrays(mesh, [*stored, *chosen]) and any(x.has_pieces for x in chosen):
        return request._on_whole_axes(chosen).compile()
    return Partitioned(
        program.name, mesh, stages, program.ins, program.outs, tuple(stored), tuple(chosen), callbacks
    )


def _has_arrays(mesh: Mesh, layouts: Sequence[Layout]) -> bool:
    """Whether arrays can lie so: where layouts cut axes, on a finer mesh, if the cuts nest and the axes have no types."""
    try:
        finer = Refinement(mesh, layouts).mesh
    except LayoutError:
        return False
    return finer is mesh or mesh.axis_types is None


def _run_passes(
    request: Request, ins: list[Layout], outs: Sequence[Layout | None]
) -> tuple[dict[str, Module], tuple[Any, ...]]:
    module, callbacks, asking = request.program.import_on(request.mesh)
    main = module.main
    for value, layout in zip(main.body.args, ins, strict=True):
        value.layout = padded(layout, value.type.rank)
    for value, attrs, layout in zip(main.body.returns, main.result_attrs, outs, strict=True):
        attrs.pop("layout", None)
        if layout is not None:
            attrs["layout"] = padded(layout, value.type.rank)
    mark(main.arg_attrs, request.program.ins_on_host)
    mark(main.result_attrs, request.program.outs_on_host)
    units = local_units(module, request.mesh, callbacks)
    stages = compile_module(module, request.options, units=units, target=request.mesh.target)
    tell(stages["propagate"], asking, request.mesh)
    return stages, tuple(callbacks)


def padded(layout: Layout, rank: int) -> Layout:
    """Of a random key array: its physical form has dims behind the logical ones."""
    return Layout((*layout.dims, *((),) * (rank - layout.rank)), layout.partial)


def _input(wanted: Wanted, struct: jax.ShapeDtypeStruct) -> Layout:
    if wanted is None:
        return Layout.replicated(len(struct.shape))
    return wanted.resolve() if isinstance(wanted, Chosen) else wanted


def _output(wanted: Wanted, struct: jax.ShapeDtypeStruct) -> Layout | None:
    if wanted is None and compat.is_extended(struct.dtype):
        return Layout.replicated(len(struct.shape))  # the choice might cut the bits of a key
    return wanted.resolve() if isinstance(wanted, Chosen) else wanted


def _as_asked(made: Layout, asked: Layout | None, shape: tuple[int, ...], mesh: Mesh) -> Layout:
    """A result's layout with the axes of size 1 that it was asked to have, which the passes don't see."""
    if asked is None:
        return made
    stored = stored_layout(asked, shape, mesh)
    return stored if made is stored.drop(a for a in stored.axes if mesh.axis_size(a) == 1) else made


def _result_layouts(stages: dict[str, Module], outs: Sequence[jax.ShapeDtypeStruct]) -> list[Layout]:
    layouts: list[Layout] = []
    for value, struct in zip(stages["propagate"].main.body.returns, outs, strict=True):
        assert value.layout is not None
        layouts.append(Layout(value.layout.dims[: len(struct.shape)], value.layout.partial))
    return layouts


# ------------------------------------------------------------------------------------------- the primitive
call_p = compat.primitive(
    "spmd_call",
    lambda *_, request: list(map(type_of, request.program.outs, request.program.outs_on_host)),
)


def call(request: Request, *args: Any) -> list[Any]:
    """Binds the program to (traced) arguments. JAX finds the devices of a computation by looking for shardings in it,
    but not inside of primitives that it does not know: a constraint that says nothing else names them."""
    values = list(args)
    if values and not request.mesh.is_abstract:
        free = [jax.sharding.PartitionSpec.UNCONSTRAINED] * values[0].ndim
        sharding = jax.sharding.NamedSharding(request.mesh.auto, jax.sharding.PartitionSpec(*free))
        values[0] = jax.lax.with_sharding_constraint(values[0], sharding)
    return call_p.bind(*values, request=request)


def _lower_call(*args: Any, request: Request) -> list[Any]:
    outer = compat.program_mesh()
    if outer is None:
        return request.compile().run(*args)
    return _inline(outer, request, args)


def _inline(outer: Mesh, request: Request, args: Sequence[Any]) -> list[Any]:
    """The program as part of a larger one: its layouts become constraints."""
    from .constraint import constrain

    if outer != request.mesh:
        raise MeshError(
            f"a program on {outer!r} calls {request.program.name} on {request.mesh!r}; one program has one mesh"
        )

    def pin(xs: Sequence[Any], wanted: Sequence[Wanted]) -> list[Any]:
        return [
            constrain(x, w, outer) if isinstance(w, Layout) and w.rank else x
            for x, w in zip(xs, wanted, strict=True)
        ]

    return pin(request.program.run(*pin(args, request.ins)), request.outs)


compat.register_function_lowering(call_p, _lower_call)
