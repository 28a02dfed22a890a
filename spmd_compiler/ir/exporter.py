"""IR to StableHLO: global modules as they are, per-device modules with their collectives over all devices.

Handles every stage that has no `relayout`. An op without a dot in its name is StableHLO's; see the importer.
"""

from __future__ import annotations

from typing import Any, Literal

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..errors import SpmdError
from .attributes import STRUCTS, AttributeWriter
from .collectives import CollectiveWriter
from .context import make_context
from .graph import Block, Function, Loc, Module, Op, Raw, Value
from .layout import Layout
from .locations import write_location
from .optable import sends, terminator
from .types import TensorType, Type, mlir_dtype

Groups = Literal["mesh_axes", "dense"]
Devices = Literal["partitions", "replicas"]

_RENAMED = {
    "call": "func.call",
    "sharding_constraint": "sdy.sharding_constraint",
    "manual_computation": "sdy.manual_computation",
}
# Attributes that are the compiler's own.
_INTERNAL = frozenset({"axes", "cause", "layout"})
# Those of collectives that the user wrote, which say that it is partitions that they are between.
_BETWEEN_PARTITIONS = frozenset({"channel_handle", "use_global_device_ids"})
# MLIR's verifier looks at every pair of every permute: on a mesh of 65,536, for most of a compilation.
_VERIFIED_PAIRS = 100_000


def export_module(
    module: Module,
    *,
    context: ir.Context | None = None,
    groups: Groups = "mesh_axes",
    devices: Devices = "partitions",
    platform: str | None = None,
) -> ir.Module:
    """Writes a module as StableHLO, in `context` or one of `make_context`.

    `groups`: how the groups of collectives over mesh axes are written; "mesh_axes" is independent of the
    number of devices, "dense" lists them, which the StableHLO interpreter needs. `devices`: what XLA is to call them; it
    partitions a program of several partitions, one of replicas it runs as it is. `platform`: see `CollectiveWriter`.
    Raises SpmdError for a module with `relayout` and for one that StableHLO's verifier rejects.
    """
    target = context or make_context()
    with target, ir.Location.unknown():
        return _Exporter(module, target, groups, devices, platform).export()


def export_text(module: Module, *, groups: Groups = "mesh_axes", locations: bool = False) -> str:
    """The StableHLO text of a module, with source locations if wanted."""
    out = export_module(module, groups=groups).operation
    return str(out.get_asm(enable_debug_info=locations, assume_verified=True))


def _verify(op: ir.Operation) -> None:
    try:
        op.verify()
    except ir.MLIRError as error:
        problem = "; ".join(f"{d.location}: {d.message}" for d in error.error_diagnostics) or str(error)
        raise SpmdError(f"the module is not valid StableHLO: {problem}") from None


class _Exporter:
    def __init__(
        self, module: Module, context: ir.Context, groups: Groups, devices: Devices, platform: str | None
    ):
        self._module = module
        self._context = context
        self._replicas = devices == "replicas"
        self._unwritten = _INTERNAL | _BETWEEN_PARTITIONS if self._replicas else _INTERNAL
        self._writer = AttributeWriter()
        self._collectives = CollectiveWriter(
            module.mesh, self._writer, groups == "mesh_axes", self._replicas, platform
        )
        self._types: dict[Type, ir.Type] = {}
        self._locs: dict[Loc, ir.Location] = {}
        self._names: dict[str, str] = {}
        self._values: dict[Value, ir.Value] = {}

    def export(self) -> ir.Module:
        out = ir.Module.create()
        top = out.operation
        top.attributes["sym_name"] = ir.StringAttr.get(self._module.name)
        with ir.InsertionPoint(out.body):
            self._meshes()
            for function in self._module.functions.values():
                self._function(function)
        for key, value in self._module.attrs.items():
            # MLIR's have a dialect; others are the compiler's own, such as "notes".
            if "." in key and key not in ("sdy.mesh", "stablehlo.mesh") and not key.startswith("func."):
                top.attributes[key] = self._writer.attribute("module", key, value)
        if self._collectives.used:
            counts = (1, self._module.mesh.size) if self._replicas else (self._module.mesh.size, 1)
            for key, count in zip(("mhlo.num_partitions", "mhlo.num_replicas"), counts, strict=True):
                top.attributes[key] = self._writer.attribute("module", key, count)
        if self._collectives.pairs <= _VERIFIED_PAIRS:
            _verify(top)
        return out

    def _meshes(self) -> None:
        data: dict[str, Raw] = dict(self._module.attrs.get("stablehlo.mesh", ()))
        for symbol, mesh in self._module.attrs.get("sdy.mesh", ()):
            attrs = {"sym_name": ir.StringAttr.get(symbol), "mesh": ir.Attribute.parse(mesh.text)}
            if symbol in data:
                attrs["stablehlo.mesh"] = ir.Attribute.parse(data[symbol].text)
            ir.Operation.create("sdy.mesh", attributes=attrs)

    def _function(self, function: Function) -> None:
        self._values.clear()
        body = function.body
        inputs = [self._type(a.type) for a in body.args]
        outputs = [self._type(r.type) for r in body.returns]
        attrs: dict[str, ir.Attribute] = {
            "sym_name": ir.StringAttr.get(function.name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs)),
            "sym_visibility": ir.StringAttr.get("public" if function.public else "private"),
        }
        for key, dicts in (("arg_attrs", function.arg_attrs), ("res_attrs", function.result_attrs)):
            if any(dicts):
                attrs[key] = ir.ArrayAttr.get([ir.DictAttr.get(self._attrs("func", d)) for d in dicts])
        for key, value in self._module.attrs.get(f"func.{function.name}", ()):
            attrs[key] = self._writer.attribute("func", key, value)
        op = ir.Operation.create("func.func", attributes=attrs, regions=1)
        unknown = ir.Location.unknown()
        names: list[ir.Location] = [ir.Location.name(a.name) if a.name else unknown for a in body.args]
        self._block(op.regions[0], body, inputs, names, "func.return")

    def _block(
        self, region: ir.Region, block: Block, types: list[ir.Type], arg_locs: list[ir.Location], end: str
    ) -> None:
        out = region.blocks.append(*types, arg_locs=arg_locs)
        values = self._values
        for arg, value in zip(block.args, out.arguments, strict=True):
            values[arg] = value
        point = ir.InsertionPoint(out)
        create, writer = ir.Operation.create, self._writer
        for op in block.ops:
            name, loc = op.name, self._loc(op.loc)
            operands = [values[v] for v in op.operands]
            if name == "axis_index":
                position = self._collectives.position(op.attrs["axes"], out, point, loc)
                values[op.results[0]] = position
                continue
            if sends(op):
                result_types = [self._type(r.type) for r in op.results]
                outputs = self._collectives.emit(op, operands, result_types, point, loc)
                for result, output in zip(op.results, outputs, strict=True):
                    values[result] = output
                continue
            result_types = [self._type(r.type) for r in op.results]
            if name == "constant":
                attrs = {"value": writer.dense(op.attrs["value"], result_types[0])}
            else:
                attrs = self._attrs(name, op.attrs)
            mlir_name = self._names.get(name) or self._name(op)
            made = create(mlir_name, result_types, operands, attrs, None, len(op.regions), loc, point)
            for result, output in zip(op.results, made.results, strict=True):
                values[result] = output
            for i, inner in enumerate(op.regions):
                inner_types = [self._type(a.type) for a in inner.args]
                self._block(made.regions[i], inner, inner_types, [loc] * len(inner_types), terminator(name))
        returns = [values[v] for v in block.returns]
        create(end, [], returns, None, None, 0, ir.Location.unknown(), point)

    def _attrs(self, name: str, attrs: dict[str, Any]) -> dict[str, ir.Attribute]:
        if not attrs:
            return {}
        writer = self._writer
        struct = STRUCTS.get(name)
        if struct is None:
            return {
                k: writer.attribute(name, k, v)
                for k, v in attrs.items()
                if k not in self._unwritten and v.__class__ is not Layout
            }
        out = {
            k: writer.attribute(name, k, v)
            for k, v in attrs.items()
            if k not in struct.fields and k not in self._unwritten
        }
        out[struct.key] = writer.struct(name, struct, attrs)
        return out

    def _name(self, op: Op) -> str:
        name = op.name
        if name == "relayout":
            raise SpmdError(
                f"{op.loc}: a relayout has no StableHLO form; expand the module before exporting it"
            )
        if self._replicas and name == "partition_id":
            name = "replica_id"
        out = _RENAMED.get(name) or (name if "." in name else "stablehlo." + name)
        self._names[op.name] = out
        return out

    def _type(self, type: Type) -> ir.Type:
        out = self._types.get(type)
        if out is None:
            if isinstance(type, TensorType):
                element = ir.Type.parse(mlir_dtype(type.dtype))
                out = ir.RankedTensorType.get(type.shape, element)
            else:
                out = stablehlo.TokenType.get()
            self._types[type] = out
        return out

    def _loc(self, loc: Loc) -> ir.Location:
        out = self._locs.get(loc)
        if out is None:
            out = self._locs[loc] = write_location(loc, self._context)
        return out
