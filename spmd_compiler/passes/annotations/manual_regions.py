"""Manual regions in the form that GSPMD programs have: values enter by one custom call and leave by another.

`form_manual_regions` collects what happens between them into `manual_computation` ops, as Shardy programs have.
"""

from __future__ import annotations

from ...errors import LayoutError
from ...ir.clone import clone_block
from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout
from ...ir.resolve import Resolved, ShardingResolver

ENTER, LEAVE = "SPMDFullToShardShape", "SPMDShardToFullShape"


def form_manual_regions(block: Block, resolver: ShardingResolver) -> None:
    """Rewrites a block in place. Raises LayoutError where regions are interleaved with global code."""
    if any(_target(op) in (ENTER, LEAVE) for op in block.ops):
        _Former(block, resolver).run()


class _Region:
    def __init__(self) -> None:
        self.enters: list[Op] = []
        self.ops: list[Op] = []
        self.leaves: list[Op] = []


class _Former:
    def __init__(self, block: Block, resolver: ShardingResolver):
        self.block = block
        self.resolver = resolver
        self.producer = block.makers()
        self.position = {op: i for i, op in enumerate(block.ops)}
        self.region: dict[Value, _Region] = {}

    def run(self) -> None:
        moved = self._sources()
        for op in self.block.ops:
            self._assign(op, moved)
        for value in self.block.returns:
            if value in self.region:
                raise LayoutError(
                    f"{self.producer[value].loc}: a value of a manual region is used outside; it leaves by @{LEAVE}"
                )
        regions = list({id(r): r for r in self.region.values()}.values())
        inside = {op for r in regions for op in (*r.enters, *r.ops, *r.leaves)}
        at: dict[Op, list[_Region]] = {}
        for region in regions:
            if region.leaves:
                at.setdefault(min(region.leaves, key=self.position.__getitem__), []).append(region)
        ops: list[Op] = []
        for op in self.block.ops:
            ops += [self._manual_op(region, op) for region in at.get(op, ())]
            if op not in inside:
                ops.append(op)
        self.block.ops[:] = ops

    def _sources(self) -> set[Op]:
        """Ops that belong to a region though nothing enters them: calls without arguments that lead to its exit.
        Constants stay outside, where others may use them."""
        closed: set[Value] = set()
        for op in self.block.ops:
            if _target(op) not in (ENTER, LEAVE) and all(v in closed for v in _uses(op)):
                closed.update(op.results)
        found: set[Op] = set()
        todo = [v for op in self.block.ops if _target(op) == LEAVE for v in op.operands]
        while todo:
            value = todo.pop()
            op = self.producer.get(value) if value in closed else None
            if op is not None and op not in found and op.name not in ("constant", "iota"):
                found.add(op)
                todo += _uses(op)
        return found

    def _assign(self, op: Op, moved: set[Op]) -> None:
        target = _target(op)
        if target == ENTER:
            self.region[op.results[0]] = region = _Region()
            region.enters.append(op)
            return
        members = {id(r): r for v in _uses(op) if (r := self.region.get(v)) is not None}
        if not members:
            if op not in moved:
                return
            members = {0: _Region()}
        region = self._merge(list(members.values()))
        if target == LEAVE:
            region.leaves.append(op)
            return
        region.ops.append(op)
        for value in op.results:
            self.region[value] = region

    def _merge(self, regions: list[_Region]) -> _Region:
        first = regions[0]
        for other in regions[1:]:
            first.enters += other.enters
            first.ops += other.ops
            first.leaves += other.leaves
            for value, region in self.region.items():
                if region is other:
                    self.region[value] = first
        first.ops.sort(key=self.position.__getitem__)
        return first

    def _manual_op(self, region: _Region, before: Op) -> Op:
        limit = self.position[before]
        own = {v for op in region.ops for v in op.results} | {op.results[0] for op in region.enters}
        captured = {v: None for op in region.ops for v in _uses(op) if v not in own}
        operands = [op.operands[0] for op in region.enters] + list(captured)
        for value in operands:
            made = self.producer.get(value)
            if made is not None and self.position[made] > limit:
                raise LayoutError(
                    f"{made.loc}: a value made from a manual region's result enters that same region"
                )
        borders = [self._border(op, op.operands[0], op.results[0]) for op in region.enters]
        outs = [self._border(op, op.results[0], op.operands[0]) for op in region.leaves]
        args = [op.results[0] for op in region.enters]
        env = {v: Value(v.type, None, v.name) for v in captured}
        body = clone_block(Block([], region.ops, [op.operands[0] for op in region.leaves]), env)
        attrs = {
            "in_layouts": (*borders, *(Layout.replicated(v.type.rank) for v in captured)),
            "out_layouts": tuple(outs),
            "manual_axes": self._manual_axes(region),
        }
        block = Block([*args, *env.values()], body.ops, body.returns)
        return Op(
            "manual_computation",
            operands,
            [op.results[0] for op in region.leaves],
            attrs,
            (block,),
            before.loc,
        )

    def _border(self, op: Op, whole: Value, part: Value) -> Layout:
        """The layout with which a value crosses the border: of `whole` outside, shards of type `part` inside."""
        if _target(op) == LEAVE:
            layout = self._sharding(op, whole).layout
        else:
            producer = self.producer.get(whole)
            layout = whole.layout if producer is None else self._sharding(producer, whole).layout
        layout = layout or Layout.replicated(whole.type.rank)
        dims = tuple(
            axes if n != m else ()
            for axes, n, m in zip(layout.dims, whole.type.shape, part.type.shape, strict=True)
        )
        mesh = self.resolver.mesh
        shape = tuple(-(-n // mesh.axes_size(axes)) for n, axes in zip(whole.type.shape, dims, strict=True))
        if shape != part.type.shape:
            raise LayoutError(
                f"{op.loc}: {whole.type} in layout {layout} on {mesh} has no shards of {part.type}; the shardings of "
                "manual regions must be cut from one order of devices"
            )
        return Layout(dims)

    def _sharding(self, op: Op, value: Value) -> Resolved:
        text = op.attrs.get("mhlo.sharding")
        return (
            self.resolver.hlo(text, [value.type], str(op.loc))[0] if isinstance(text, str) else Resolved(None)
        )

    def _manual_axes(self, region: _Region) -> tuple[str, ...]:
        for op in region.enters:
            manual = self._sharding(op, op.results[0]).manual
            if manual is not None:
                return manual
        return self.resolver.mesh.axis_names


def _target(op: Op) -> str | None:
    return op.attrs.get("call_target_name") if op.name == "custom_call" else None


def _uses(op: Op) -> list[Value]:
    """Operands, and what the regions take from outside."""
    return [*op.operands, *(v for region in op.regions for v in region.captured())]
