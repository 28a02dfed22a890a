"""StableHLO for the collectives that the compiler inserts, and for a device's position on mesh axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from ..errors import SpmdError
from .attributes import AttributeWriter
from .constants import elements, matrix
from .cpu_forms import CpuForms
from .forms import Collective, Forms, GpuForms, like
from .graph import Op
from .groups import device_groups, mesh_axes_text, permute_pairs, strides
from .mesh import Mesh
from .optable import COMBINE

_DIMS = ("dim", "split_dim", "concat_dim")
# by JAX's platform; where there is no form for a collective it is written plainly
_FORMS: dict[str | None, type[Forms]] = {"cpu": CpuForms, "cuda": GpuForms, "rocm": GpuForms}


class CollectiveWriter:
    """Writes collectives over mesh axes. Devices are partitions or `replicas`, numbered row-major over the mesh.

    Every collective between partitions gets a channel of its own. One with several operands becomes one op per operand: XLA's
    partitioner rejects variadic collectives inside a manual computation, and XLA combines them itself, but for all-gathers:
    what these gather is packed into one buffer, except between replicas on CPU, where XLA keeps them as they are.

    platform: JAX's name of what the program is for; collectives are written in the forms that its XLA compiler does best.
    """

    def __init__(
        self,
        mesh: Mesh,
        writer: AttributeWriter,
        compact: bool,
        replicas: bool = False,
        platform: str | None = None,
    ):
        self.used = False
        self.pairs = 0  # of all permutes together
        self._mesh = mesh
        self._writer = writer
        self._compact = compact
        self._replicas = replicas
        self._forms = _FORMS.get(platform, Forms)
        self._variadic = replicas and platform == "cpu"
        self._channel = 0
        self._groups: dict[tuple[str, ...], ir.Attribute] = {}
        self._pairs: dict[tuple, tuple[ir.Attribute, int]] = {}
        # Positions already computed, per block: a loop would have to carry what its body takes from outside.
        self._positions: dict[ir.Block, dict[Any, ir.Value]] = {}

    def emit(
        self,
        op: Op,
        operands: list[ir.Value],
        types: list[ir.Type],
        point: ir.InsertionPoint,
        loc: ir.Location,
    ) -> list[ir.Value]:
        """The results of a collective op, written at `point`."""
        self.used = True
        forms, kind = self._forms(point, loc), op.attrs.get("kind")
        sent = [forms.sent(x, kind) for x in operands]
        shapes = [like(x, ir.RankedTensorType(type).shape) for x, type in zip(sent, types, strict=True)]
        received = self._emit(op, sent, shapes, forms, point, loc)
        return [forms.received(y, type, kind) for y, type in zip(received, types, strict=True)]

    def _emit(
        self,
        op: Op,
        operands: list[ir.Value],
        types: list[ir.Type],
        forms: Forms,
        point: ir.InsertionPoint,
        loc: ir.Location,
    ) -> list[ir.Value]:
        together = op.name == "all_gather" and len(operands) > 1
        if together and not self._variadic:
            n = self._mesh.axes_size(op.attrs["axes"])
            return forms.gather_together(operands, n, self._collective(op, point, loc))
        form = None if together else getattr(forms, op.name, None)
        if form is not None:
            write = self._collective(op, point, loc)
            dims = [op.attrs[key] for key in _DIMS if key in op.attrs]
            return [form(x, *dims, self._mesh.axes_size(op.attrs["axes"]), write) for x in operands]
        attrs = self._attributes(op)
        if together:
            return self._write(op, attrs, operands, types, point, loc)
        rows = zip(operands, types, strict=True)
        return [y for x, type in rows for y in self._write(op, attrs, [x], [type], point, loc)]

    def _collective(self, op: Op, point: ir.InsertionPoint, loc: ir.Location) -> Collective:
        """What writes a collective op with other operands, along other dims."""

        def write(x: ir.Value, shape: Sequence[int], dim: int) -> ir.Value:
            along = {key: dim for key in _DIMS if key in op.attrs}
            moved = Op(op.name, op.operands, op.results, {**op.attrs, **along})
            return self._write(op, self._attributes(moved), [x], [like(x, shape)], point, loc)[0]

        return write

    def _write(
        self,
        op: Op,
        attrs: dict[str, ir.Attribute],
        operands: list[ir.Value],
        types: list[ir.Type],
        point: ir.InsertionPoint,
        loc: ir.Location,
    ) -> list[ir.Value]:
        if not self._replicas:
            self._channel += 1
            attrs["channel_handle"] = ir.Attribute.parse(
                f"#stablehlo.channel_handle<handle = {self._channel}, type = 1>"
            )
        regions = 1 if "kind" in op.attrs else 0
        made = ir.Operation.create(f"stablehlo.{op.name}", types, operands, attrs, None, regions, loc, point)
        if regions:
            self._reducer(made.regions[0], op, types[0], loc)
        return list(made.results)

    def position(
        self, axes: tuple[str, ...], block: ir.Block, point: ir.InsertionPoint, loc: ir.Location
    ) -> ir.Value:
        """i32[]: the device's row-major position on `axes`; computed once per block."""
        self.used = True
        known = self._positions.setdefault(block, {})
        hit = known.get(axes)
        if hit is None:
            hit = known[axes] = self._position(axes, known, _Emitter(point, loc, known, self._replicas))
        return hit

    def _position(self, axes: tuple[str, ...], known: dict[Any, ir.Value], emitter: _Emitter) -> ir.Value:
        total: ir.Value | None = None
        for stride, size, weight in strides(self._mesh, axes):
            coordinate = known.get((stride, size))
            if coordinate is None:
                coordinate = emitter.device()
                if stride > 1:
                    coordinate = emitter.binary("divide", coordinate, stride)
                if stride * size < self._mesh.size:
                    coordinate = emitter.binary("remainder", coordinate, size)
                coordinate = known[(stride, size)] = emitter.signed(coordinate)
            term = coordinate if weight == 1 else emitter.binary("multiply", coordinate, weight)
            total = term if total is None else emitter.add(total, term)
        return emitter.zero() if total is None else total

    def _attributes(self, op: Op) -> dict[str, ir.Attribute]:
        name, attrs, axes = op.name, op.attrs, op.attrs["axes"]
        number = self._writer.attribute
        if name == "collective_permute":
            return {"source_target_pairs": self._source_target_pairs(op)}
        out = {"replica_groups": self._replica_groups(axes)}
        if name == "all_to_all":
            out["split_dimension"] = number(name, "split_dimension", attrs["split_dim"])
            out["concat_dimension"] = number(name, "concat_dimension", attrs["concat_dim"])
            out["split_count"] = number(name, "split_count", self._mesh.axes_size(axes))
            return out
        if not self._replicas:
            out["use_global_device_ids"] = ir.UnitAttr.get()
        if name == "all_gather":
            out["all_gather_dim"] = number(name, "all_gather_dim", attrs["dim"])
        elif name == "reduce_scatter":
            out["scatter_dimension"] = number(name, "scatter_dimension", attrs["dim"])
        return out

    def _replica_groups(self, axes: tuple[str, ...]) -> ir.Attribute:
        hit = self._groups.get(axes)
        if hit is None:
            if self._compact:
                hit = ir.Attribute.parse(mesh_axes_text(self._mesh, axes))
            else:
                hit = matrix(device_groups(self._mesh, axes))
            self._groups[axes] = hit
        return hit

    def _source_target_pairs(self, op: Op) -> ir.Attribute:
        attrs = op.attrs
        key = tuple([attrs.get(name) for name in ("axes", "shift", "wrap", "target_axes", "pairs")])
        hit = self._pairs.get(key)
        if hit is None:
            if attrs.keys().isdisjoint(("shift", "pairs", "target_axes")):
                raise SpmdError(f"{op.loc}: collective_permute needs `shift`, `pairs` or `target_axes`")
            pairs = permute_pairs(self._mesh, attrs)
            hit = self._pairs[key] = (matrix(pairs), len(pairs))
        self.pairs += hit[1]
        return hit[0]

    def _reducer(self, region: ir.Region, op: Op, type: ir.Type, loc: ir.Location) -> None:
        kind = op.attrs["kind"]
        if kind not in COMBINE:
            raise SpmdError(f"{op.loc}: {op.name} has the unknown reduction {kind!r}")
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(type).element_type)
        block = region.blocks.append(scalar, scalar, arg_locs=[loc, loc])
        point = ir.InsertionPoint(block)
        name = f"stablehlo.{COMBINE[kind]}"
        made = ir.Operation.create(name, [scalar], list(block.arguments), None, None, 0, loc, point)
        ir.Operation.create("stablehlo.return", [], [made.results[0]], None, None, 0, loc, point)


class _Emitter:
    """Scalar arithmetic on the device's number, at one point of one block."""

    def __init__(
        self, point: ir.InsertionPoint, loc: ir.Location, known: dict[Any, ir.Value], replicas: bool
    ):
        self._point = point
        self._loc = loc
        self._known = known
        self._number = "replica_id" if replicas else "partition_id"

    def device(self) -> ir.Value:
        if self._number not in self._known:
            unsigned = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))
            self._known[self._number] = self._op(self._number, unsigned)
        return self._known[self._number]

    def signed(self, value: ir.Value) -> ir.Value:
        return self._op("convert", ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), value)

    def zero(self) -> ir.Value:
        return self._constant(0, ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)))

    def binary(self, name: str, value: ir.Value, number: int) -> ir.Value:
        return self._op(name, value.type, value, self._constant(number, value.type))

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._op("add", a.type, a, b)

    def _constant(self, number: int, type: ir.Type) -> ir.Value:
        data = elements(np.array(number, np.uint32), type)
        return self._op("constant", type, attrs={"value": data})

    def _op(
        self, name: str, type: ir.Type, *operands: ir.Value, attrs: dict[str, ir.Attribute] | None = None
    ):
        made = ir.Operation.create(
            f"stablehlo.{name}", [type], list(operands), attrs, None, 0, self._loc, self._point
        )
        return made.results[0]
