"""StableHLO to IR. Names and attributes follow `docs/architecture.md`, "IR conventions"."""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..errors import ArgumentError, SpmdError, UnsupportedError
from .attributes import AttributeReader
from .captures import OPEN_REGIONS, close_region
from .constants import read_blob, read_dense
from .context import parse_stablehlo
from .graph import Block, Dense, Function, Loc, Module, Op, Raw, Value
from .locations import argument_name, parse_location
from .mesh import Mesh
from .optable import terminator
from .types import TOKEN, TensorType, Type, dtype_from_mlir

_RENAMED = {
    "func.call": "call",
    "sdy.constant": "constant",
    "sdy.sharding_constraint": "sharding_constraint",
    "sdy.manual_computation": "manual_computation",
}
_BLOB = re.compile(r'([\w.$-]+|"[^"]*"): "0x([0-9A-Fa-f]+)"')
# Attributes of a function that the IR holds elsewhere.
_FUNCTION_ATTRS = frozenset({"sym_name", "sym_visibility", "function_type", "arg_attrs", "res_attrs"})


def import_module(source: ir.Module | str | bytes, mesh: Mesh) -> Module:
    """Reads a StableHLO module, or its text or bytecode, with global shapes.

    The entry function is `main`, else the only public one, which becomes `main`. Raises ParseError (line and
    column) for malformed text, and SpmdError for what the IR can't hold: dynamic shapes, functions without a
    body, unknown element types.
    """
    module = parse_stablehlo(source) if isinstance(source, str | bytes) else source
    with module.context, ir.Location.unknown():
        return _Importer(module).module(mesh)


class _Importer:
    def __init__(self, module: ir.Module):
        self._module = module
        self._attributes = AttributeReader()
        self._names: dict[str, str] = {}
        self._types: dict[ir.Type, Type] = {}
        self._locs: dict[ir.Attribute, Loc] = {}
        self._constants: dict[ir.Attribute, Dense] = {}
        self._blobs: dict[str, bytes] | None = None
        self._values: dict[ir.Value, Value] = {}
        self._made: dict[Value, Op] = {}  # the constant ops so far, by result

    def module(self, mesh: Mesh) -> Module:
        top = self._module.operation
        attrs = {k: self._attributes.attribute("module", k, top.attributes[k]) for k in top.attributes}
        name = attrs.pop("sym_name", "main")
        functions: dict[str, Function] = {}
        broken: dict[str, SpmdError] = {}  # what can't be imported, which matters if anything calls it
        meshes: list[tuple[str, Raw]] = []
        mesh_data: list[tuple[str, Raw]] = []
        for view in self._module.body.operations:
            op = view.operation
            if op.name == "func.func":
                try:
                    function = self._function(op)
                except SpmdError as error:
                    broken[ir.StringAttr(op.attributes["sym_name"]).value] = error
                    continue
                functions[function.name] = function
                extra = self._extra(op)
                if extra:
                    attrs[f"func.{function.name}"] = extra
            elif op.name == "sdy.mesh":
                symbol = ir.StringAttr(op.attributes["sym_name"]).value
                meshes.append((symbol, Raw(str(op.attributes["mesh"]))))
                if "stablehlo.mesh" in op.attributes:
                    mesh_data.append((symbol, Raw(str(op.attributes["stablehlo.mesh"]))))
            else:
                raise UnsupportedError(f"{self._loc(op)}: can't import {op.name} at the top of a module")
        if meshes:
            attrs["sdy.mesh"] = tuple(meshes)
        if mesh_data:
            attrs["stablehlo.mesh"] = tuple(mesh_data)
        if broken and "main" not in functions:
            raise next(iter(broken.values()))
        entry = _entry(functions)
        if broken:
            _check_reached(functions, entry, broken)
        if f"func.{entry}" in attrs:
            attrs["func.main"] = attrs.pop(f"func.{entry}")
        return Module(mesh, _with_main(functions, entry), name, attrs)

    def _extra(self, op: ir.Operation) -> tuple[tuple[str, Any], ...]:
        keys = [k for k in op.attributes if k not in _FUNCTION_ATTRS]
        return tuple((k, self._attributes.attribute("func", k, op.attributes[k])) for k in keys)

    def _function(self, op: ir.Operation) -> Function:
        attrs = op.attributes
        name = ir.StringAttr(attrs["sym_name"]).value
        public = "sym_visibility" not in attrs or ir.StringAttr(attrs["sym_visibility"]).value == "public"
        if not len(op.regions[0].blocks):
            raise UnsupportedError(f"{self._loc(op)}: function @{name} has no body")
        entry = op.regions[0].blocks[0]
        self._values.clear()
        names = [argument_name(str(a.location)) for a in entry.arguments] if public else None
        body = self._block(op, "func.return", names)
        return Function(
            name,
            body,
            public,
            self._dicts(attrs, "arg_attrs", len(body.args)),
            self._dicts(attrs, "res_attrs", len(body.returns)),
        )

    def _dicts(self, attrs: Any, key: str, count: int) -> list[dict[str, Any]]:
        if key not in attrs:
            return [{} for _ in range(count)]
        read = self._attributes.attribute
        return [
            {n.name: read("func", n.name, n.attr) for n in ir.DictAttr(d)} for d in ir.ArrayAttr(attrs[key])
        ]

    def _regions(self, op: ir.Operation, name: str) -> tuple[Block, ...]:
        end = terminator(name)
        regions = tuple(self._block(op, end, None, i) for i in range(len(op.regions)))
        if name not in OPEN_REGIONS:
            for region in regions:
                close_region(region, self._made, self._loc(op))
        return regions

    def _block(self, owner: ir.Operation, end: str, names: list[str] | None, index: int = 0) -> Block:
        blocks = owner.regions[index].blocks
        if len(blocks) != 1:
            raise UnsupportedError(
                f"{self._loc(owner)}: region {index} of {owner.name} has {len(blocks)} blocks, not one"
            )
        block = blocks[0]
        values, types = self._values, self._types
        args = []
        for i, argument in enumerate(block.arguments):
            value = Value(self._type(argument.type, owner), None, names[i] if names else "")
            values[argument] = value
            args.append(value)
        ops: list[Op] = []
        returns: list[Value] | None = None
        for view in block.operations:
            op = view.operation
            mlir_name = op.name
            name = self._names.get(mlir_name) or self._name(mlir_name)
            operands = [values[v] for v in op.operands]
            # JAX ends the comparators of approx_top_k, which are functions, with stablehlo.return.
            if mlir_name == end or (end == "func.return" and mlir_name == "stablehlo.return"):
                returns = operands
                break
            results = []
            for result in op.results:
                type = types.get(result.type)
                if type is None:
                    type = self._type(result.type, op)
                value = Value(type)
                values[result] = value
                results.append(value)
            if name == "constant":
                attrs: dict[str, Any] = {"value": self._constant(op, results[0].type)}
            else:
                attrs = self._attrs(op, name)
            regions = self._regions(op, name) if len(op.regions) else ()
            ops.append(Op(name, operands, results, attrs, regions, self._loc(op)))
            if name == "constant":
                self._made[results[0]] = ops[-1]
        if returns is None:
            raise UnsupportedError(f"{self._loc(owner)}: a region of {owner.name} does not end in {end}")
        return Block(args, ops, returns)

    def _name(self, mlir_name: str) -> str:
        name = _RENAMED.get(mlir_name)
        if name is None:
            name = mlir_name.removeprefix("stablehlo.")
        self._names[mlir_name] = name
        return name

    def _attrs(self, op: ir.Operation, name: str) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        read, source = self._attributes.attribute, op.attributes
        for key in source:
            value = read(name, key, source[key])
            if value.__class__ is dict:
                attrs.update(value)
            else:
                attrs[key] = value
        return attrs

    def _type(self, mlir: ir.Type, op: ir.Operation) -> Type:
        type = self._types.get(mlir)
        if type is None:
            type = self._types[mlir] = self._convert_type(mlir, op)
        return type

    def _convert_type(self, mlir: ir.Type, op: ir.Operation) -> Type:
        if isinstance(mlir, ir.RankedTensorType):
            if not mlir.has_static_shape or mlir.encoding is not None:
                raise UnsupportedError(
                    f"{self._loc(op)}: {op.name} has the dynamic type {mlir}; only static shapes compile"
                )
            try:
                return TensorType(tuple(mlir.shape), dtype_from_mlir(str(mlir.element_type)))
            except KeyError:
                pass
        elif stablehlo.TokenType.isinstance(mlir):
            return TOKEN
        raise UnsupportedError(
            f"{self._loc(op)}: {op.name} has a value of type {mlir}, which is not supported"
        )

    def _constant(self, op: ir.Operation, type: Type) -> Dense:
        assert isinstance(type, TensorType)
        try:
            attr = op.attributes["value"]
        except TypeError:  # the bindings have no class for dense complex data, not even a plain one
            text = str(op.get_asm(use_local_scope=True))
            return read_dense(text[text.rindex("dense<") :], type)
        value = self._constants.get(attr)
        if value is None:
            if attr.__class__ is ir.Attribute and (text := str(attr)).startswith("dense_resource<"):
                value = read_blob(self._blob(text[len("dense_resource<") : text.index("> :")]), type)
            else:
                value = read_dense(attr, type)
            self._constants[attr] = value
        return value

    def _blob(self, key: str) -> bytes:
        """The data of a resource; the bindings give access to it through the printed module only."""
        if self._blobs is None:
            text = str(self._module)
            found = _BLOB.findall(text[text.rfind("{-#") :])
            # Four bytes of alignment precede the data.
            self._blobs = {name.strip('"'): bytes.fromhex(digits)[4:] for name, digits in found}
        return self._blobs[key.strip('"')]

    def _loc(self, op: ir.Operation) -> Loc:
        location = op.location
        key = location.attr
        loc = self._locs.get(key)
        if loc is None:
            loc = self._locs[key] = parse_location(str(location))
        return loc


def _entry(functions: dict[str, Function]) -> str:
    if "main" in functions:
        return "main"
    public = [f.name for f in functions.values() if f.public]
    if len(public) != 1:
        names = f": {', '.join(public)}" if public else ""
        raise ArgumentError(
            f"the module has no function @main, and {len(public)} public ones{names}; name the one to compile @main"
        )
    return public[0]


def _check_reached(functions: dict[str, Function], entry: str, broken: dict[str, SpmdError]) -> None:
    """Raises the error of the first broken function that the entry reaches."""
    todo, seen = [entry], {entry}
    while todo:
        for op in functions[todo.pop()].body.walk():
            attrs = op.attrs
            callees = (attrs.get("callee"), attrs.get("decomposition"), *attrs.get("called_computations", ()))
            for name in callees:
                if name in broken:
                    raise broken[name]
                if name in functions and name not in seen:
                    seen.add(name)
                    todo.append(name)


def _with_main(functions: dict[str, Function], entry: str) -> dict[str, Function]:
    """The functions, with `entry` renamed to main."""
    if entry == "main":
        return functions
    for function in functions.values():
        for op in function.body.walk():
            if op.name == "call" and op.attrs["callee"] == entry:
                op.attrs["callee"] = "main"
    functions[entry].name = "main"
    return {f.name: f for f in functions.values()}
