"""What JAX does not promise to keep: internals and semi-public modules, JAX 0.10.2 to 0.12. Only `compat_executables` touches such
too."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src import checkify as _checkify
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_partitioning as _custom_partitioning
from jax._src import custom_partitioning_sharding_rule as _sharding_rule
from jax._src import debugging as _debugging
from jax._src import effects as _effects
from jax._src import mesh as _mesh
from jax._src import source_info_util as _source_info
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]
from jax.extend import core as jex_core
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir
from jaxlib import lapack as _lapack
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

Primitive = jex_core.Primitive


# --------------------------------------------------------------------------------------------- devices
def backend_started() -> bool:
    """True once JAX has made its first device."""
    return bool(_xla_bridge.backends_are_initialized())


def lowering_platform(devices: Sequence[Any] | None, abstract_device: Any = None) -> str:
    """The platform whose lowering rules make programs for these devices, or for devices like `abstract_device` (`cpu`,
    `cuda`, `tpu`); the default's if there are none."""
    if abstract_device is not None:
        if abstract_device.platform != "gpu":
            return str(abstract_device.platform)
        return "rocm" if "AMD" in abstract_device.device_kind else "cuda"
    client = devices[0].client if devices else _xla_bridge.get_backend()
    return getattr(client, "_raw_platform", client.platform)


def device_memory(device: Any) -> int | None:
    """Bytes that a device of this process has for arrays; None if it isn't known."""
    if only_compiles(device) or device.process_index != device.client.process_index():
        return None
    stats = device.memory_stats()
    return stats.get("bytes_limit") if stats else None


def only_compiles(device: Any) -> bool:
    """True for a device of a topology that is described, not present."""
    return isinstance(device.client, _jax.CompileOnlyPyClient)


# --------------------------------------------------------------------------------------------- tracing
def trace_context() -> Any:
    """JAX's settings that change what a trace gives (x64, matmul precision, ...), hashable."""
    return _config.trace_context()


def tracing_mesh(mesh: jax.sharding.AbstractMesh) -> Any:
    """A context for tracing, in which bare PartitionSpecs are on `mesh`."""
    return jax.sharding.use_abstract_mesh(mesh)


def context_mesh() -> jax.sharding.Mesh | None:
    """That of `jax.set_mesh`, or of the `with mesh:` that came before it."""
    meshes = _mesh.get_concrete_mesh(), _mesh.thread_resources.env.physical_mesh
    return next((m for m in meshes if m is not None and not m.empty), None)


def explicit_mesh(values: Sequence[Any]) -> Any:
    """The `AbstractMesh` on which types of values say how they lie: that of the context, or theirs; None if there is none."""
    meshes = (jax.sharding.get_abstract_mesh(), *(jax.typeof(x).sharding.mesh for x in values))
    return next((m for m in meshes if jax.sharding.AxisType.Explicit in (m.axis_types or ())), None)


def is_tracing() -> bool:
    """True while any function is being traced, even if no argument at hand is a tracer."""
    clean = getattr(_core, "trace_state_clean", None)
    return not (_core.trace_ctx.is_top_level() if clean is None else clean())


def manual_axes() -> tuple[str, ...]:
    """The axes of the `shard_map` or `pmap` around what is being traced."""
    return tuple(getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ()))


def captured_tracers(traced: Any) -> list[Any]:
    """What a function captured if that includes values being traced: then it all is in front of its jaxpr's arguments."""
    return list(traced._consts)


def primal_of(x: Any) -> Any:
    """The concrete array under tracers of differentiation, else `x` itself."""
    while isinstance(x, jax.core.Tracer):
        inner = getattr(x, "primal", None)
        if inner is None:
            return x
        x = inner
    return x


def shaped_array(
    shape: tuple[int, ...], dtype: Any, weak_type: bool = False, like: Any = None, on_host: bool = False
) -> Any:
    """The type of a value; `like`: a type that varies over the same manual axes."""
    if like is None or not like.mat.varying:
        space = jax.memory.Space.Host if on_host else jax.memory.Space.Device
        return jax.core.ShapedArray(shape, dtype, weak_type=weak_type, memory_space=space)
    sharding = like.sharding.update(spec=jax.sharding.PartitionSpec(*(None,) * len(shape)))
    return jax.core.ShapedArray(
        shape, dtype, weak_type=weak_type, sharding=sharding, manual_axis_type=like.mat
    )


def vary_alike(values: Sequence[Any]) -> list[Any]:
    """The values, in a manual region all varying over the axes that any of them varies over."""
    types = [jax.typeof(x) for x in values]
    axes = frozenset().union(*(t.mat.varying for t in types))
    missing = [tuple(a for a in t.mat.varying.symmetric_difference(axes)) for t in types]
    return [jax.lax.pcast(x, m, to="varying") if m else x for x, m in zip(values, missing, strict=True)]


def struct_of(x: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weakness of an argument as JAX would trace it. TypeError for what is not an array."""
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    dtype = aval.dtype
    if not isinstance(x, jax.Array):  # an array keeps a type of 64 bits
        dtype = jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(aval.shape, dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def partitions(spec: jax.sharding.PartitionSpec) -> tuple[Any, ...]:
    """The axes of each dim; one with unreduced axes doesn't give them otherwise."""
    return tuple(getattr(spec, "partitions", spec))


def is_extended(dtype: Any) -> bool:
    """True for dtypes that are made of several physical numbers: random keys."""
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def load_lapack() -> None:
    """Makes XLA's LAPACK calls ready, as JAX does where it lowers one: until then they are null pointers."""
    _lapack.prepare_lapack_call("potrf_ffi", jnp.float32)


# ----------------------------------------------------------------------------------------------- jaxprs
def jaxpr_as_fun(jaxpr: Any) -> Callable[..., list[Any]]:
    return jex_core.jaxpr_as_fun(jaxpr)


def output_sources(jaxpr: Any) -> list[Any]:
    """For each output of a jaxpr: the position of the input that it is, else something that equal outputs share."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    where = {id(v): i for i, v in enumerate(inner.invars)}
    return [where.get(id(v), _Variable(v)) for v in inner.outvars]


class _Variable:
    """A variable (or literal) of a jaxpr, by identity."""

    def __init__(self, var: Any):
        self.var = var

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Variable) and self.var is other.var

    def __hash__(self) -> int:
        return id(self.var)


def depending_outputs(jaxpr: Any, first: int) -> list[bool]:
    """Which outputs depend on the inputs from position `first` on."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    moved = {id(v) for v in inner.invars[first:]}
    for eqn in inner.eqns:
        if any(id(v) in moved for v in eqn.invars):
            moved.update(map(id, eqn.outvars))
    return [id(v) in moved for v in inner.outvars]


def source_line(eqn: Any) -> str:
    """`file:line` of the user's code that made an equation."""
    return str(_source_info.summarize(eqn.source_info))


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation, those of inner jaxprs too."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


def is_ordered(eqn: Any) -> bool:
    """Whether an equation itself, not one of a jaxpr within it, has an ordered effect."""
    if any(jex_core.jaxprs_in_params(eqn.params)):
        return False
    return any(map(_effects.ordered_effects.contains, eqn.effects))


# ------------------------------------------------------------------------------------------- primitives
def primitive(name: str, abstract_eval: Callable[..., list[Any]]) -> Any:
    """A primitive with several results that only runs within `jax.jit`."""
    p = Primitive(name)
    p.multiple_results = True
    p.def_abstract_eval(abstract_eval)

    def impl(*args: Any, **params: Any) -> Any:
        return jax.jit(lambda *xs: p.bind(*xs, **params))(*args)

    p.def_impl(impl)
    return p


def register_function_lowering(p: Any, function: Callable[..., Any]) -> None:
    """`function(*args, **params)` is traced by JAX in place of the primitive."""
    mlir.register_lowering(p, mlir.lower_fun(function, multiple_results=True))


def host_callbacks(lowered: Any) -> tuple[Any, ...]:
    """The host functions that the custom calls of a lowered program name by their positions."""
    return tuple(lowered._lowering.compile_args["host_callbacks"])


def renumber_callbacks(block: ir.Block, first: int) -> None:
    """Positions of host functions count from `first` on."""
    for op in block.operations:
        for region in op.regions:
            for inner in region.blocks:
                renumber_callbacks(inner, first)
        if op.name == "stablehlo.custom_call" and "_callback" in str(op.attributes["call_target_name"]):
            config = {named.name: named.attr for named in ir.DictAttr(op.attributes["mhlo.backend_config"])}
            index = ir.IntegerAttr(config["index"])
            config["index"] = ir.IntegerAttr.get(index.type, int(index) + first)
            op.attributes["mhlo.backend_config"] = ir.DictAttr.get(config, block.owner.context)


def register_module_lowering(
    p: Any, export: Callable[..., ir.Module], callbacks: Callable[..., Sequence[Any]]
) -> None:
    """`export(context, **params)` gives a module whose main takes and returns what the primitive does;
    `callbacks(**params)` the host functions that it calls."""

    def rule(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
        into = ctx.module_context
        module = export(into.context, **params)
        if called := callbacks(**params):
            renumber_callbacks(module.body, len(into.host_callbacks))
            for function in called:
                into.add_host_callback(function)
        main = next(op for op in module.body.operations if op.sym_name.value == "main")
        types = main.type.results
        name = mlir.merge_mlir_modules(into.module, "spmd_program", module, into.symbol_table)
        call = func_dialect.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(args))
        return list(call.results)

    mlir.register_lowering(p, rule)


def register_marker_lowering(
    p: Any, target: str, config: Callable[..., str], outside: Callable[..., Any]
) -> None:
    """Within a program of ours, an identity that our importer reads: `custom_call @target` with `config(rank, **params)` as
    its text, of an operand of that rank, in which random keys have dims behind their own. Elsewhere `outside(x, **params)` is
    traced in its place."""
    lower_outside = mlir.lower_fun(outside, multiple_results=True)

    def rule(ctx: Any, x: Any, **params: Any) -> Any:
        if program_mesh() is None:
            return lower_outside(ctx, x, **params)
        return [custom_call(target, x, config(ir.RankedTensorType(x.type).rank, **params))]

    mlir.register_lowering(p, rule)


def custom_call(target: str, operand: Any, config: str) -> Any:
    """`stablehlo.custom_call @target(operand) {backend_config = config}` of the operand's type."""
    attributes: dict[str, ir.Attribute] = {
        "call_target_name": ir.StringAttr.get(target),
        "backend_config": ir.StringAttr.get(config),
    }
    return ir.Operation.create("stablehlo.custom_call", [operand.type], [operand], attributes).results[0]


class Marker(NamedTuple):
    """`stablehlo.custom_call @target {backend_config = config, sharding_rule = rule}`. `keep`: what must live as long
    as the lowered program."""

    target: str
    config: str
    rule: str | None
    keep: Any


def lower_inside(p: Any, marker: Callable[..., Marker | None]) -> None:
    """Within a program of ours, but where it leaves no axis to the compiler, `p` becomes the custom call `marker(in_avals, out_avals,
    **params)`, unless that is None; elsewhere it lowers as before. Doing it again replaces `marker`."""
    for table in (_mlir._lowerings, *_mlir._platform_specific_lowerings.values()):
        entry = table.get(p)
        if entry is not None:
            before = entry.rule.outside if isinstance(entry.rule, _InsideRule) else entry.rule
            table[p] = dataclasses.replace(entry, rule=_InsideRule(before, marker))


class _InsideRule:
    def __init__(self, outside: Callable[..., Any], marker: Callable[..., Marker | None]):
        self.outside = outside
        self._marker = marker

    def __call__(self, ctx: Any, *args: Any, **params: Any) -> Any:
        into = ctx.module_context
        mesh, manual, made = program_mesh(), getattr(into.axis_context, "manual_axes", ()), None
        if mesh is not None and any(n > 1 and a not in manual for a, n in mesh.axes):
            made = self._marker(ctx.avals_in, ctx.avals_out, **params)
        if made is None:
            return self.outside(ctx, *args, **params)
        into.add_keepalive(made.keep)
        types = [t for aval in ctx.avals_out for t in _mlir.aval_to_ir_types(into, aval)]
        attributes: dict[str, ir.Attribute] = {
            "call_target_name": ir.StringAttr.get(made.target),
            "backend_config": ir.StringAttr.get(made.config),
        }
        if made.rule is not None:
            attributes["sharding_rule"] = ir.StringAttr.get(made.rule)
        return ir.Operation.create("stablehlo.custom_call", types, list(args), attributes).results


# ------------------------------------------------------------------------------------------- debugging
inspect_sharding_p = _debugging.inspect_sharding_p


# ---------------------------------------------------------------------------------- custom_partitioning
custom_partitioning_p = _custom_partitioning.custom_partitioning_p


def function_name(jaxpr: Any) -> str:
    """The name of the function that a jaxpr was traced from."""
    return str(jaxpr.jaxpr.debug_info.func_name)


def partitioning_callback(key: str) -> Any:
    """What JAX remembers of the `custom_partitioning` function whose call has this backend_config; None if it is gone."""
    return _custom_partitioning._sharding_callbacks.get(key.encode())


def partitioning_rule(
    rule: Any, static_args: Sequence[Any], mesh: Any, in_avals: Sequence[Any], out_avals: Sequence[Any]
) -> str | None:
    """The sharding rule that `def_partition` was given, as the text of an MLIR attribute; None if it was given none."""
    if rule is None:
        return None
    with mlir.make_ir_context(), ir.Location.unknown():
        ins, outs = ([_tensor_type(a) for a in avals] for avals in (in_avals, out_avals))
        made: Any = rule(*static_args, mesh, ins, outs) if callable(rule) else rule
        made, options = made if isinstance(made, list | tuple) and len(made) == 2 else (made, {})
        if isinstance(made, str):
            made = _sharding_rule.str_to_sdy_sharding_rule(made, **options)
        return str(_sharding_rule.sdy_sharding_rule_to_mlir(made, ins, outs))


def _tensor_type(aval: Any) -> ir.Type:
    return ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype))


def register_checks(p: Any, refuse: Callable[..., None]) -> None:
    """`refuse(**params)` raises where `jax.experimental.checkify` looks into ops for errors, which it can't into this one."""

    def rule(*given: Any, **params: Any) -> Any:  # before JAX 0.12 without a context, which comes first
        at = next(i for i, x in enumerate(given) if isinstance(x, frozenset))
        error, enabled, args = given[at - 1], given[at], given[at + 1 :]
        if enabled - _checkify.user_checks:
            refuse(**params)
        return error, p.bind(*args, **params)

    _checkify.error_checks[p] = rule


def register_jvp(p: Any, rule: Callable[..., Any]) -> None:
    """`rule(primals, tangents, **params)`: tangents are None where they are zero; so may be those it returns."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        given = [None if isinstance(t, _ad.Zero) else t for t in tangents]
        outs, out_tangents = rule(primals, given, **params)
        zeros = [
            _ad.Zero(_tangent_aval(jax.typeof(x))) if t is None else t
            for x, t in zip(outs, out_tangents, strict=True)
        ]
        return outs, zeros

    _ad.primitive_jvps[p] = jvp


def register_transpose(p: Any, rule: Callable[..., Any]) -> None:
    """`rule(cotangents, args, **params)`: zero cotangents are None; a linear argument is its ShapeDtypeStruct, and gets
    a cotangent or None; the others get None."""

    def transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
        given = [None if isinstance(t, _ad.Zero) else t for t in cotangents]
        known = [
            jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) if _ad.is_undefined_primal(a) else a
            for a in args
        ]
        return list(rule(given, known, **params))

    _ad.primitive_transposes[p] = transpose


class BatchAxis(NamedTuple):
    """The axis of a `vmap`: `spmd_axes` are the mesh axes that the user says it lies on."""

    name: Any
    size: int
    spmd_axes: tuple[str, ...]


def register_batching(p: Any, rule: Callable[..., Any]) -> None:
    """`rule(axis, args, dims, **params)` gives outputs and their batch dims; an unbatched argument has the dim None."""

    def batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        name = None if axis.name is _core.no_axis_name else axis.name
        spmd = axis.spmd_name or ()
        spmd = (spmd,) if isinstance(spmd, str) else tuple(spmd)
        mapped = [d if isinstance(d, int) else None for d in dims]
        if all(d is None for d in mapped):
            outs = p.bind(*args, **params)
            return outs, [None] * len(outs)
        return rule(BatchAxis(name, axis.size, spmd), args, mapped, **params)

    _batching.fancy_primitive_batchers[p] = batch


def _tangent_aval(aval: Any) -> Any:
    return aval.to_tangent_aval()


# ------------------------------------------------------------------------------------------- our lowering
_inside: contextvars.ContextVar[Any] = contextvars.ContextVar("spmd_inside", default=None)


@contextmanager
def inside_program(mesh: Any) -> Iterator[None]:
    """While a global program on `mesh` is lowered for our importer, not for XLA."""
    token = _inside.set(mesh)
    try:
        yield
    finally:
        _inside.reset(token)


def program_mesh() -> Any:
    """The mesh of the global program that is being lowered for our importer, else None."""
    return _inside.get()
