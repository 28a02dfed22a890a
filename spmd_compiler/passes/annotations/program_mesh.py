"""The mesh to partition a program for: the one it is given, or the one that its own annotations are about."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import MeshError
from ...ir.annotations import MeshText, parse_shardings
from ...ir.graph import Function, Module, Op, Raw
from ...ir.hlo_sharding import NamedText, parse_hlo_sharding
from ...ir.mesh import Mesh
from ...ir.optable import CALLS
from ...ir.resolve import find_mesh
from .manual_regions import LEAVE

_SYMBOL = re.compile(r'<@("(?:[^"\\]|\\.)*"|[\w.$-]+),')


def program_mesh(module: Module, meshes: dict[str, MeshText], devices: int, given: Mesh | None) -> Mesh:
    """`given`, or the mesh that the annotations in reach of `main` name: that of a manual computation before
    others, then the largest. Without any, `devices` decides.

    Raises MeshError if the program's shardings are for another number of devices than `given`."""
    ops = [op for function in reached_functions(module) for op in function.body.walk()]
    main = module.main
    used = {
        m: None for attrs in (*main.arg_attrs, *main.result_attrs) for m in _meshes_in(attrs.values(), meshes)
    }
    bound: dict[MeshText, None] = {}
    for op in ops:
        if op.attrs:
            found = dict.fromkeys(_meshes_in(op.attrs.values(), meshes))
            used.update(found)
            if op.name == "manual_computation":
                bound.update(found)
    at_borders = [op.attrs for op in ops if _crosses(op)]
    found = (a.get("mhlo.sharding") for a in (*at_borders, *_dicts(main, ops)))
    hlo = list(dict.fromkeys(text for text in found if isinstance(text, str)))
    used.update(
        (s.sharding.mesh, None)
        for text in hlo
        for s in parse_hlo_sharding(text)
        if isinstance(s, NamedText) and isinstance(s.sharding.mesh, MeshText)
    )
    named = [m for m in bound if m.axes] or [m for m in used if m.axes] or list(meshes.values())
    if given is None:
        return find_mesh(named, hlo, devices)
    sizes = {math.prod(size for _, size in m.axes) for m in named if m.axes}
    if sizes and given.size not in sizes:
        counts = " and ".join(map(str, sorted(sizes)))
        raise MeshError(
            f"the program's meshes and {given} have different numbers of devices: {counts}, not {given.size}"
        )
    return given


def reached_functions(module: Module) -> list[Function]:
    """`main`, and the functions that it refers to, at any depth."""
    found = {"main": module.main}
    todo = [module.main]
    while todo:
        for op in todo.pop().body.walk():
            callee = op.attrs.get(CALLS[op.name]) if op.name in CALLS else None
            for name in (callee,) if callee else op.attrs.get("called_computations", ()):
                if name not in found and name in module.functions:
                    found[name] = module.functions[name]
                    todo.append(module.functions[name])
    return list(found.values())


def _crosses(op: Op) -> bool:
    """Whether values leave a manual region of GSPMD here; where they enter, no sharding says how."""
    return op.name == "custom_call" and op.attrs.get("call_target_name") == LEAVE


def _dicts(main: Function, ops: Iterable[Op]) -> Iterator[dict[str, Any]]:
    yield from (*main.arg_attrs, *main.result_attrs)
    yield from (op.attrs for op in ops if op.attrs)


def _meshes_in(values: Iterable[Any], meshes: dict[str, MeshText]) -> Iterator[MeshText]:
    """The meshes that shardings among `values` name, or hold in full."""
    for value in values:
        if isinstance(value, Raw) and value.text.startswith("#sdy.sharding"):
            for name in _SYMBOL.findall(value.text):
                if (mesh := meshes.get(name.strip('"'))) is not None:
                    yield mesh
            if "<mesh<" in value.text:
                yield from (s.mesh for s in parse_shardings(value.text) if isinstance(s.mesh, MeshText))
