"""Functions with sharding rules: how a program holds them until its passes know the blocks that they run on.

In a program of ours the primitive `spmd_unit` lowers to a custom call with the rule; `local_units.local_units` tells the passes what
that call runs on a device. Anywhere else the function is traced in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol
from weakref import WeakValueDictionary

import jax

from . import compat
from .errors import LayoutError, UnsupportedError
from .ir.clone import inline_block
from .ir.graph import Block, Op, Value
from .ir.importer import import_module
from .ir.layout import local_type
from .ir.types import TensorType, numpy_dtype
from .mesh import Mesh
from .passes.annotate import Annotate
from .passes.rules.custom import UNIT
from .passes.simplify import Simplify
from .passes.units import Local
from .tracing import tracing

_WIDE = frozenset({"i64", "u64", "f64", "c128"})


class Localizer(Protocol):
    """What a custom call stands for. `name` is for people."""

    name: str

    def localize(self, op: Op, mesh: Mesh, blocks: Blocks) -> Local:
        """What each device runs, given the layouts that `op` has."""
        ...


Run = Callable[..., Sequence[Any]]


class Unit:
    """A function of arrays that returns a list of arrays, with a rule; it runs on blocks as it does on whole arrays.

    `run_for`: the function, for results of given shapes (which most functions know by themselves). `derived`: see
    `unit_transforms`."""

    def __init__(self, name: str, run_for: Callable[[tuple[Any, ...]], Run], rule: str):
        self.name = name
        self.rule = rule
        self.derived: dict[Any, Unit] = {}
        self._run_for = run_for
        self._runs: dict[Any, Run] = {}
        self._outs: dict[Any, list[jax.ShapeDtypeStruct]] = {}

    def run_for(self, results: Sequence[Any]) -> Run:
        """The same function for the same results."""
        key = struct_key(results)
        if key not in self._runs:
            self._runs[key] = self._run_for(tuple(results))
        return self._runs[key]

    def outs(self, args: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        """What it returns for arguments like these."""
        key = struct_key(args)
        if key not in self._outs:
            structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
            self._outs[key] = list(jax.eval_shape(self.run_for(()), *structs))
        return self._outs[key]

    def localize(self, op: Op, mesh: Mesh, blocks: Blocks) -> Local:
        ins = tuple([v.layout for v in op.operands if v.layout is not None])
        outs = tuple([v.layout for v in op.results if v.layout is not None])
        types = [local_type(v.type, x, mesh) for v, x in zip(op.operands, ins, strict=True)]
        wanted = [local_type(v.type, x, mesh) for v, x in zip(op.results, outs, strict=True)]
        shapes = ", ".join(map(str, types))
        about = f"{op.loc}: {self.name} runs on blocks, by its sharding rule {self.rule!r}"
        try:
            body = blocks.of(self.run_for([struct_of_type(t) for t in wanted]), types)
        except (TypeError, ValueError, AssertionError) as error:
            raise LayoutError(f"{about}, but on ({shapes}) it fails: {error}") from error
        made = [v.type for v in body.returns]
        if made != wanted:
            raise LayoutError(
                f"{about}, but makes ({', '.join(map(str, made))}) of ({shapes}) instead of "
                f"({', '.join(map(str, wanted))})"
            )
        return Local(body, ins, outs)


def struct_key(values: Sequence[Any]) -> tuple[Any, ...]:
    """Shapes and dtypes, hashable."""
    return tuple((tuple(x.shape), x.dtype) for x in values)


def exactly(x: Any) -> tuple[Any, ...]:
    """A key of what is hashable that tells 1 from 1.0 and True, and 0.0 from -0.0."""
    return x, type(x), math.copysign(1, x) if isinstance(x, float) else None


def struct_of_type(type: Any) -> jax.ShapeDtypeStruct:
    """Of a tensor type of the IR."""
    assert isinstance(type, TensorType)
    return jax.ShapeDtypeStruct(type.shape, numpy_dtype(type.dtype))


# What custom calls of programs stand for, by their backend_config. Whoever holds the program keeps it alive.
_alive: WeakValueDictionary[str, Localizer] = WeakValueDictionary()


def unit_of_key(key: str) -> Localizer | None:
    return _alive.get(key)


def key_of(found: Localizer) -> str:
    """The backend_config for it: its name, with a number if another has that name."""
    n, key = 0, found.name
    while _alive.setdefault(key, found) is not found:
        n += 1
        key = f"{found.name}.{n}"
    return key


class Blocks:
    """Traces functions for blocks, on behalf of one program; the host functions that they call join `callbacks`."""

    def __init__(self, mesh: Mesh, callbacks: list[Any]):
        self.mesh = mesh
        self.callbacks = callbacks
        self._made: dict[Any, Block] = {}

    def of(self, run: Run, types: Sequence[Any]) -> Block:
        """The ops of `run` for local arguments of these types. Collectives over the mesh's axes may be among them."""
        key = (run, tuple(types))
        if key not in self._made:
            self._made[key] = self._trace(run, types)
        return self._made[key]

    def _trace(self, run: Run, types: Sequence[TensorType]) -> Block:
        mesh, whole = self.mesh, jax.sharding.PartitionSpec()
        structs = [struct_of_type(t) for t in types]
        wide = any(t.dtype in _WIDE for t in types)
        mapped = jax.shard_map(
            lambda *xs: list(run(*xs)), mesh=mesh.auto, in_specs=whole, out_specs=whole, check_vma=False
        )
        precision = jax.enable_x64(True) if wide else nullcontext()  # for programs from elsewhere
        with precision, tracing(mesh), compat.inside_program(mesh):
            traced = jax.jit(mapped, keep_unused=True).trace(*structs)
            platform = compat.lowering_platform(mesh.devices, mesh.abstract_device)
            lowered = traced.lower(lowering_platforms=(platform,))
        source: Any = lowered.compiler_ir()
        if called := compat.host_callbacks(lowered):
            compat.renumber_callbacks(source.body, len(self.callbacks))
            self.callbacks += called
        module = Simplify()(Annotate(mesh)(import_module(source, mesh)))
        if len(module.functions) > 1:
            raise UnsupportedError(
                "a function with a sharding rule can't make custom calls that refer to functions"
            )
        return _without_region(module.main.body)


def _without_region(body: Block) -> Block:
    """The block with what its manual region holds in the region's place."""
    out, env = Block(body.args, [], []), dict[Value, Value]()
    for op in body.ops:
        op.operands = [env.get(v, v) for v in op.operands]
        if op.name == "manual_computation":
            made = inline_block(op.regions[0], op.operands, out.ops)
            env.update(zip(op.results, made, strict=True))
        else:
            out.ops.append(op)
    out.returns = [env.get(v, v) for v in body.returns]
    return out


# ------------------------------------------------------------------------------------------- the primitive
unit_p = compat.primitive(
    "spmd_unit",
    lambda *args, unit, outs: [
        compat.shaped_array(s.shape, s.dtype, like=args[0] if args else None) for s in outs
    ],
)


def bind(unit: Unit, args: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """The unit on (traced) arguments. `outs`: what it returns for these."""
    return list(unit_p.bind(*compat.vary_alike(args), unit=unit, outs=tuple(outs)))


def _plainly(*args: Any, unit: Unit, outs: tuple[Any, ...]) -> list[Any]:
    return list(unit.run_for(outs)(*args))


unit_p.def_impl(_plainly)
compat.register_function_lowering(unit_p, _plainly)


def _marker(ins: Any, results: Any, *, unit: Unit, outs: Any) -> compat.Marker:
    return compat.Marker(UNIT, key_of(unit), unit.rule, unit)


compat.lower_inside(unit_p, _marker)
