"""annotate: the sharding annotations of an imported program become layouts.

Arguments and results of `main` get their layouts, constraints become `relayout` ops, and manual computations get
layouts at their borders. Afterwards no op carries an annotation of Shardy or XLA. It completes what the importer
made, in place; all passes behind it build new modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import LayoutError, UnsupportedError
from ..ir.annotations import ShardyText, parse_group_axes, parse_manual_axes, parse_mesh, parse_shardings
from ..ir.clone import clone_block
from ..ir.factor_text import parse_shardy_rule, print_rule
from ..ir.graph import Block, Function, Module, Op, Raw, Value
from ..ir.groups import device_groups
from ..ir.layout import Layout, check_layout
from ..ir.mesh import Mesh
from ..ir.optable import ASKED, CALLS, CONTROL_FLOW
from ..ir.parser import parse_layout
from ..ir.resolve import Resolved, ShardingResolver
from .annotations.manual_regions import ENTER, LEAVE, form_manual_regions
from .annotations.program_mesh import program_mesh, reached_functions
from .annotations.round_trip import read_round_trip
from .prepare.open_regions import automatic_axes
from .rules.custom import RULE, fitted

_CONSTRAINTS = {
    "sharding_constraint": "sharding",
    "sdy.reshard": "sharding",
    **dict.fromkeys(
        (
            "sdy.all_gather",
            "sdy.all_reduce",
            "sdy.all_slice",
            "sdy.all_to_all",
            "sdy.collective_permute",
            "sdy.reduce_scatter",
            "sdy.replicated_to_unreduced",
            "sdy.sharded_to_unreduced",
        ),
        "out_sharding",
    ),
}
_IDENTITIES = frozenset({"sdy.propagation_barrier", "sdy.data_flow_edge", "sdy.func_data_flow_edge"})
_SHARDING, _RELAYOUT = "Sharding", "spmd.relayout"
_TARGETS = frozenset({_SHARDING, _RELAYOUT, ENTER, LEAVE})
_OPEN_DIMS = re.compile(r"unspecified_dims=\[([\d,\s]*)\]")


@dataclass(frozen=True)
class Annotate:
    """`mesh`: the mesh to use; without one, the program's own. `rules`: sharding rules by custom call target. Raises
    LayoutError, MeshError, or ParseError for a malformed annotation. What can't be honoured is listed in the module
    attribute "notes"."""

    mesh: Mesh | None = None
    rules: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str] = "annotate"

    def __call__(self, module: Module) -> Module:
        read_round_trip(module)
        meshes = {name: parse_mesh(raw.text) for name, raw in module.attrs.get("sdy.mesh", ())}
        devices = _number(module.attrs.get("mhlo.num_partitions", 1))
        mesh = program_mesh(module, meshes, devices, self.mesh)
        work = _Annotator(module, ShardingResolver(mesh, meshes), self.rules)
        work.run()
        attrs = dict(module.attrs)
        if work.resolver.notes:
            attrs["notes"] = "\n".join(work.resolver.notes)
        return Module(mesh, module.functions, module.name, attrs)


class _Annotator:
    def __init__(self, module: Module, resolver: ShardingResolver, rules: Mapping[str, str]):
        self.module = module
        self.rules = rules
        self.resolver = resolver
        self._manual_copies: dict[tuple[str, frozenset[str]], str] = {}
        self._alias: dict[Value, Value] = {}

    def run(self) -> None:
        main = self.module.main
        for i, value in enumerate(main.body.args):
            where = f"argument {i}" + (f" ({value.name})" if value.name else "")
            value.layout = self._border(main.arg_attrs[i], value, where)
        for i, value in enumerate(main.body.returns):
            if layout := self._border(main.result_attrs[i], value, f"result {i}"):
                main.result_attrs[i]["layout"] = layout
        for function in reached_functions(self.module):
            _drop_annotations((*function.arg_attrs, *function.result_attrs))
            self._block(function.body, frozenset())

    def _border(self, attrs: dict[str, Any], value: Value, where: str) -> Layout | None:
        """The layout of an argument or result of `main`; None if the compiler may choose."""
        resolved = self._read(attrs, [value], where)[0]
        layout = resolved.layout
        if resolved.fully_open or layout is None:
            return None
        try:
            check_layout(layout, value.type, self.resolver.mesh)
        except ValueError as error:
            raise LayoutError(f"{where}: {error}") from None
        if layout.partial:
            self.resolver.notes[
                f"{where}: no array holds terms of a sum as {layout} asks; summed instead"
            ] = None
        return layout.without_partial()

    def _read(self, attrs: dict[str, Any], values: list[Value], where: str) -> list[Resolved]:
        """The annotation in a dict of attributes, which is removed there."""
        types = [v.type for v in values]
        hlo = attrs.pop("mhlo.sharding", None)
        raw = attrs.pop("sdy.sharding", None)
        if isinstance(raw, Raw):
            return self.resolver.shardy(raw.text, types, where)
        return (
            self.resolver.hlo(hlo, types, where) if isinstance(hlo, str) else [Resolved(None)] * len(values)
        )

    def _block(self, block: Block, manual: frozenset[str]) -> None:
        """Rewrites a block. `manual`: the axes over which it is per device; constraints speak of the others."""
        if not manual:
            form_manual_regions(block, self.resolver)
        alias = self._alias
        ops: list[Op] = []
        for op in block.ops:
            if alias:
                op.operands = [alias.get(v, v) for v in op.operands]
            name = op.name
            target = op.attrs.get("call_target_name") if name == "custom_call" else None
            if name in _CONSTRAINTS or target in _TARGETS or (manual and name == "relayout"):
                self._constraint(op, ops, manual)
            elif name == "manual_computation":
                self._manual(op, ops, manual)
            elif name == "sdy.named_computation":
                alias.update(zip(op.regions[0].args, op.operands, strict=True))
                self._block(op.regions[0], manual)
                ops += op.regions[0].ops
                alias.update(zip(op.results, op.regions[0].returns, strict=True))
            elif name in _IDENTITIES:
                alias[op.results[0]] = op.operands[0]
            elif name == "sdy.sharding_group":
                self.resolver.notes[f"{op.loc}: values of a sharding group may get different layouts"] = None
            else:
                self._plain(op, manual)
                ops.append(op)
        block.ops[:] = ops
        if alias:
            block.returns[:] = [alias.get(v, v) for v in block.returns]

    def _plain(self, op: Op, manual: frozenset[str]) -> None:
        attrs, rule = op.attrs, None
        as_written = manual and not automatic_axes(manual, self.resolver.mesh)
        if any(key.startswith("sdy.") or key == "mhlo.sharding" for key in attrs):
            attrs = op.attrs = dict(attrs)
            rule = attrs.pop("sdy.sharding_rule", None)
            self._hint(op, attrs, manual)
            _drop_annotations([attrs])
        if op.name == "custom_call" and not as_written:
            self._rule(op, rule)
        if isinstance(groups := attrs.get("replica_groups"), Raw):
            op.attrs = {**attrs, "replica_groups": self._listed(groups.text, str(op.loc))}
        if manual and op.name in CALLS:
            key = CALLS[op.name]
            op.attrs = {**attrs, key: self._manual_copy(attrs[key], manual)}
        if op.name not in CONTROL_FLOW:  # a reducer's scalars are on every device
            manual = frozenset(self.resolver.mesh.axis_names)
        for region in op.regions:
            self._block(region, manual)

    def _listed(self, text: str, where: str) -> tuple[tuple[int, ...], ...]:
        """Groups of devices over axes of a mesh as lists: as the program has them on other versions of JAX."""
        mesh, names = parse_group_axes(text)
        axes = None if "device_ids" in text else self.resolver.axes(names, mesh, where)
        if axes is None:
            raise UnsupportedError(f"{where}: {self.resolver.mesh} has no such groups of devices as {text}")
        return tuple(map(tuple, device_groups(self.resolver.mesh, axes).tolist()))

    def _rule(self, op: Op, shardys: Any) -> None:
        """The sharding rule of a custom call: Shardy's or its own, else the one that its target is registered with."""
        target = str(op.attrs.get("call_target_name"))
        text = op.attrs.get(RULE, self.rules.get(target))
        if isinstance(shardys, Raw):
            text = print_rule(parse_shardy_rule(shardys.text))
        if not isinstance(text, str):
            return
        op.attrs = {**op.attrs, RULE: text}
        try:
            fitted(op)
        except ValueError as error:
            problem = f"{op.loc}: sharding rule {text!r} of @{target}: {error}"
            if not isinstance(shardys, Raw):
                raise LayoutError(problem) from None
            del op.attrs[RULE]
            self.resolver.notes[f"{problem}; it runs replicated"] = None

    def _hint(self, op: Op, attrs: dict[str, Any], manual: frozenset[str]) -> None:
        """An annotation on any other op is what another partitioner chose or a user hoped; it binds nobody."""
        try:
            found = self._read(attrs, op.results, str(op.loc))
        except LayoutError:
            return
        for value, resolved in zip(op.results, found, strict=True):
            if not manual and resolved.layout is not None and not resolved.fully_open:
                value.layout = resolved.layout

    def _constraint(self, op: Op, ops: list[Op], manual: frozenset[str]) -> None:
        value = op.operands[0]
        silent = manual and not automatic_axes(manual, self.resolver.mesh)
        resolved = Resolved(None) if silent else self._resolve_constraint(op)
        if resolved.fully_open or value.type.rank == 0 or resolved.layout is None:
            self._alias[op.results[0]] = value
            return
        result = op.results[0]
        result.layout = resolved.layout.drop(manual)
        attrs: dict[str, Any] = {"cause": ASKED}
        if resolved.open:
            attrs["open"] = resolved.open
        ops.append(Op("relayout", [value], [result], attrs, (), op.loc))

    def _resolve_constraint(self, op: Op) -> Resolved:
        attrs, types, where = op.attrs, [op.results[0].type], str(op.loc)
        if op.name == "relayout":  # read already, before its function was copied for a manual region
            return Resolved(op.results[0].layout, attrs.get("open", ()))
        if op.name != "custom_call":
            return self.resolver.shardy(attrs[_CONSTRAINTS[op.name]].text, types, where)[0]
        config = attrs.get("backend_config", "")
        if attrs["call_target_name"] == _RELAYOUT:
            layout = parse_layout(config)
            try:
                check_layout(layout, types[0], self.resolver.mesh)
            except ValueError as error:
                raise LayoutError(f"{where}: {error}") from None
            return Resolved(layout)
        found = _OPEN_DIMS.search(config) if isinstance(config, str) else None
        dims = tuple(int(d) for d in found[1].split(",") if d.strip()) if found else ()
        text = attrs.get("mhlo.sharding")
        if isinstance(text, str):
            return self.resolver.hlo(text, types, where, dims)[0]
        raw = attrs.get("sdy.sharding")
        return self.resolver.shardy(raw.text, types, where)[0] if isinstance(raw, Raw) else Resolved(None)

    def _manual(self, op: Op, ops: list[Op], manual: frozenset[str]) -> None:
        region, where = op.regions[0], str(op.loc)
        if "in_layouts" not in op.attrs:
            op.attrs = self._borders(op, where)
        own = frozenset(op.attrs["manual_axes"])
        if again := sorted(own & manual):
            raise LayoutError(
                f"{where}: a manual computation over {again[0]!r} inside of another one over it"
            )
        self._block(region, manual | own)
        ops.append(op)

    def _borders(self, op: Op, where: str) -> dict[str, Any]:
        """Layouts at the border of a manual computation, over its manual axes. Over the others its body is
        not partitioned."""
        inside = parse_shardings(op.attrs["in_shardings"].text)
        outside = parse_shardings(op.attrs["out_shardings"].text)
        names = parse_manual_axes(op.attrs["manual_axes"].text)
        meshes = [s.mesh for s in (*inside, *outside)]
        mesh = next((m for m in meshes if self.resolver.has_axes(m, where)), None)
        manual = names if mesh is None else self.resolver.axes(names, mesh, where)
        if manual is None:
            raise LayoutError(
                f"{where}: the manual computation is over devices of mesh {mesh} that {self.resolver.mesh} has "
                f"in no order of its axes; let all manual computations share one mesh"
            )

        def layouts(shardings: tuple[ShardyText, ...], key: str, values: list[Value]) -> tuple[Layout, ...]:
            assert manual is not None and len(shardings) == len(values)
            found = self.resolver.shardy(op.attrs[key].text, [v.type for v in values], where)
            return tuple(
                _over(r.layout or Layout.replicated(v.type.rank), manual)
                for r, v in zip(found, values, strict=True)
            )

        return {
            "in_layouts": layouts(inside, "in_shardings", op.operands),
            "out_layouts": layouts(outside, "out_shardings", op.results),
            "manual_axes": manual,
        }

    def _manual_copy(self, name: str, manual: frozenset[str]) -> str:
        """The copy of a function that regions over `manual` call."""
        key = name, manual
        copy = self._manual_copies.get(key)
        if copy is None:
            copy = self._manual_copies[key] = f"{name}.manual{len(self._manual_copies)}"
            source = self.module.functions[name]
            function = Function(copy, clone_block(source.body), False)
            self.module.functions[copy] = function
            self._block(function.body, manual)
        return copy


def _number(value: Any) -> int:
    """An integer attribute of any width: other than JAX's own they are text, `8 : i64`."""
    return int(value.text.partition(":")[0]) if isinstance(value, Raw) else int(value)


def _over(layout: Layout, manual: tuple[str, ...]) -> Layout:
    return layout.drop(layout.axes.difference(manual))


def _drop_annotations(dicts: Iterable[dict[str, Any]]) -> None:
    """Removes what no partitioner needs any more, such as what Shardy notes of how it propagated."""
    for attrs in dicts:
        for key in [k for k in attrs if k.startswith("sdy.") or k == "mhlo.sharding"]:
            del attrs[key]
