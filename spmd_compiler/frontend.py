"""The compiler as a partitioner for StableHLO from anywhere: `from_stablehlo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxlib.mlir import ir as mlir

from . import compat
from .constraint import fixed_mesh
from .errors import ArgumentError, ParseError
from .ir import layout as ir_layout
from .ir import mesh as ir_mesh
from .ir.graph import Module, Value
from .ir.importer import import_module
from .ir.scanner import AnnotationError
from .layout import is_layout_leaf, leaf_layout
from .local_units import local_units
from .lowered import Lowered
from .mesh import Mesh
from .partitioned import Partitioned
from .passes.annotate import Annotate
from .passes.annotations.boundary_tokens import drop_boundary_tokens
from .passes.pipeline import Options, compile_module
from .signature import Signature
from .target_rules import target_rules
from .tracing import current_mesh
from .units import struct_of_type

_DONORS = ("jax.buffer_donor", "tf.aliasing_output")


def from_stablehlo(
    text_or_module: Any,
    *,
    mesh: Mesh | None = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    options: Options | None = None,
) -> Lowered:
    """Partitions a StableHLO module by the annotations in it.

    The module: an MLIR module, or its text or bytecode, also `jax.export`'s `mlir_module_serialized`.

    Honoured: `sdy.mesh` and `sdy.sharding`, `sdy.sharding_constraint`, `sdy.manual_computation`, also as the
    `xla.sdy.*` frontend attributes and custom calls that stand for them; `mhlo.sharding` strings with their
    `@Sharding`, `@SPMDFullToShardShape` and `@SPMDShardToFullShape` custom calls; `sdy.sharding_rule` of custom calls,
    and the rules of `register_sharding_rule`. What can't be honoured, such as a
    mesh of fewer devices beside another, is left replicated, and `explain()` says so.

    `mesh`: the mesh to use, an `spmd.Mesh` or `jax.sharding.Mesh`; by default the program's own, over the first
    devices, or abstract if there are too few; if layouts are PartitionSpecs, the `default_mesh`. `in_layouts`,
    `out_layouts`: one leaf for all or a sequence with one per argument and result; a leaf overrides the program's
    annotation, None keeps it. Where there is neither, the compiler chooses. What runs takes the arguments of `@main`
    one by one and returns a tuple of its results; tokens are left out.

    Raises ParseError for malformed text (line and column), LayoutError and MeshError for annotations that do not
    fit their value, and ArgumentError for layouts of the wrong number.
    """
    options = Options.checked(options)
    public = fixed_mesh(mesh, in_layouts, out_layouts)
    if public is None and any(isinstance(x, PartitionSpec) for x in _flat((in_layouts, out_layouts))):
        public = current_mesh()
    module = _import(text_or_module, public)
    targets = (op.attrs.get("call_target_name") for op in module.walk() if op.name == "custom_call")
    if any(isinstance(name, str) and name.startswith(("lapack_", "blas_")) for name in targets):
        compat.load_lapack()
    if public is None:
        public = _with_devices(module.mesh)
    main = module.main
    args, results = main.body.args, main.body.returns
    for i, leaf in enumerate(_leaves(in_layouts, len(args), "in_layouts")):
        if leaf is not None:
            args[i].layout = leaf_layout(leaf, public, args[i].type.rank, f"in_layouts[{i}]")
    for i, leaf in enumerate(_leaves(out_layouts, len(results), "out_layouts")):
        if leaf is not None:
            found = leaf_layout(leaf, public, results[i].type.rank, f"out_layouts[{i}]")
            main.result_attrs[i]["layout"] = found
    donated = [i for i, attrs in enumerate(main.arg_attrs) if any(key in attrs for key in _DONORS)]
    callbacks: list[Any] = []
    units = local_units(module, public, callbacks)
    stages = compile_module(module, options, units=units, target=public.target)
    return _lowered(stages, public, tuple(donated), tuple(callbacks))


def _import(source: Any, mesh: Mesh | None) -> Module:
    if not isinstance(source, (str, bytes, mlir.Module)):
        raise ArgumentError(
            f"from_stablehlo: a {type(source).__name__} is no StableHLO; give its text or bytecode, or a module, as "
            "jax.jit(f).lower(...).compiler_ir() returns"
        )
    try:
        module = import_module(source, mesh or ir_mesh.Mesh([]))
        drop_boundary_tokens(module)
        return Annotate(mesh, target_rules())(module)
    except AnnotationError as error:
        raise _placed(error, source) from None


def _placed(error: AnnotationError, source: Any) -> ParseError:
    """The error with line and column of the source, where the annotation may stand as a string in a string."""
    text = source if isinstance(source, str) else "" if isinstance(source, bytes) else str(source)
    for quote in ('"', r"\22", r"\""):
        at = text.find(error.text.replace('"', quote))
        if at >= 0:
            at += len(error.text[: error.column - 1].replace('"', quote))
            line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
            return ParseError(f"StableHLO text, line {line}, column {column}: {error}", line, column)
    return ParseError(str(error))


def _flat(layouts: Any) -> list[Any]:
    return jax.tree.leaves(layouts, is_leaf=is_layout_leaf)


def _with_devices(mesh: ir_mesh.Mesh) -> Mesh:
    devices = jax.devices()
    return Mesh(mesh.axes, devices[: mesh.size]) if len(devices) >= mesh.size else Mesh(mesh.axes)


def _leaves(layouts: Any, count: int, name: str) -> Sequence[Any]:
    if is_layout_leaf(layouts):
        return [layouts] * count
    leaves = _flat(layouts)
    if len(leaves) != count:
        raise ArgumentError(
            f"{name} has {len(leaves)} layouts, but @main has {count}; give one for each, or None"
        )
    return leaves


def _lowered(
    stages: dict[str, Module], mesh: Mesh, donated: tuple[int, ...], callbacks: tuple[Any, ...]
) -> Lowered:
    body = stages["propagate"].main.body

    ins, outs = [struct_of_type(v.type) for v in body.args], [struct_of_type(v.type) for v in body.returns]
    layouts = _layouts(body.args), _layouts(body.returns)
    partitioned = Partitioned("main", mesh, stages, ins, outs, *layouts, callbacks)
    arguments = Signature(lambda *args: args, (), (), donated, ()).bind(tuple(ins), {})
    return Lowered(partitioned, arguments, jax.tree.structure(tuple(outs)), quiet=True)


def _layouts(values: Sequence[Value]) -> tuple[ir_layout.Layout, ...]:
    return tuple(v.layout or ir_layout.Layout.replicated(v.type.rank) for v in values)
