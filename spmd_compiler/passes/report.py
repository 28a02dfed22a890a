"""What a per-device program sends, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.graph import Module, Op, Value
from ..ir.layout import even_part
from ..ir.mesh import Mesh
from ..ir.optable import ELEMENTWISE, collective_kind
from .cost import sent_bytes
from .estimate import walk
from .rules.table import CONTROL, RuleBook
from .written_collectives import CAUSE, reach


@dataclass(frozen=True)
class Collective:
    """kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "collective_permute", and of what the program itself
    has also "collective_broadcast" and "ragged_all_to_all"; axes: the mesh axes it runs over, or where the program has it with
    groups that are no axes', those along which its devices differ; group_size: how many devices take part together;
    bytes_per_device: bytes sent once (ring model; of a ragged exchange, whose sizes are data, what an even one of the whole
    operand sends); trips: how often it runs; source: `file:line`."""

    kind: str
    axes: tuple[str, ...]
    group_size: int
    bytes_per_device: float
    trips: int
    source: str
    cause: str


def collectives(module: Module) -> list[Collective]:
    """Those that the compiler inserted and those that the program has, in program order."""
    out: list[Collective] = []
    for op, trips in walk(module.main.body):
        if (kind := collective_kind(op)) is None:
            continue
        axes, n = reach(op, module.mesh)
        if not axes:  # to itself
            continue
        source = f"{op.loc.file}:{op.loc.line}" if op.loc.file else ""
        cause = op.attrs.get("cause", CAUSE)
        out.append(Collective(kind, axes, n, sent_bytes(op, module.mesh), trips, source, cause))
    return out


def explain(stages: dict[str, Module]) -> str:
    """One line per collective, then what is not partitioned: ops without a sharded rule, which run replicated, and ops
    that read a whole operand on every device because it was gathered for them."""
    lines = [
        f"{c.kind} over {'.'.join(c.axes)}: {c.bytes_per_device:,.0f} bytes x {c.trips}  {c.source}  {c.cause}"
        for c in collectives(stages["optimize"])
    ]
    if notes := stages["import"].attrs.get("notes"):
        lines += [f"note: {line}" for line in notes.split("\n")]
    if search := stages["propagate"].attrs.get("search"):
        lines += [f"note: {line}" for line in search.split("\n")]
    lines += _uneven(stages["import"])
    if fallbacks := stages["expand"].attrs.get("fallbacks"):
        lines += fallbacks.split("\n")
    return "\n".join([*lines, *_unpartitioned(stages["propagate"])]) or "no collectives, no fallbacks"


def _uneven(module: Module) -> Iterator[str]:
    """Arguments and results that lie in another layout than is asked for, because that one does not divide them."""
    main = module.main
    asked = [(f"argument {v.name or i}", v, v.layout) for i, v in enumerate(main.body.args)]
    rows = zip(main.body.returns, main.result_attrs, strict=True)
    asked += [(f"result {i}", v, attrs.get("layout")) for i, (v, attrs) in enumerate(rows)]
    for name, value, layout in asked:
        if layout is not None and (lies := even_part(layout, value.type, module.mesh)) is not layout:
            yield f"note: {name}, {value.type}, is wanted in {layout}, which does not divide it: it lies in {lies}"


def _unpartitioned(module: Module) -> Iterator[str]:
    book = RuleBook()
    gathered: dict[Value, Op] = {}
    for op in module.walk():
        if op.name == "relayout" and _gathers(op):
            gathered[op.results[0]] = op
        if op.name == "manual_computation":
            yield from _repeated(op, module.mesh)
        if op.name in CONTROL or op.name in ("relayout", "return") or not any(v.layout for v in op.results):
            continue
        if book.rule(op).fallback:
            if any(v.type.size > 1 for v in op.operands):
                target = op.attrs.get("call_target_name")
                name = f"{op.name} @{target}" if target else op.name
                yield f"fallback: {name} runs replicated, it has no sharded rule  {op.loc}"
        elif op.name not in ELEMENTWISE:
            for position, value in enumerate(op.operands):
                if (move := gathered.get(value)) is not None:
                    source = move.operands[0].layout
                    yield (
                        f"gathered: {op.name} reads the whole of operand {position}, {value.type}, on every device: "
                        f"{source} -> {value.layout}  {op.loc}"
                    )


def _repeated(region: Op, mesh: Mesh) -> Iterator[str]:
    """What a region that is manual over pieces of axes leaves undone: such a one runs as written."""
    manual = region.attrs["manual_axes"]
    rest = mesh.size // mesh.axes_size(manual)
    if rest > 1 and any(":" in a for a in manual):
        yield (
            f"fallback: manual_computation runs replicated, each part on {rest} devices: it is manual over pieces of axes, "
            f"{', '.join(manual)}  {region.loc}"
        )


def _gathers(relayout: Op) -> bool:
    """Whether a value that was sharded becomes whole on every device."""
    source, target = relayout.operands[0].layout, relayout.results[0].layout
    return (
        source is not None
        and target is not None
        and any(source.dims)
        and not any(target.dims)
        and not target.partial
    )
