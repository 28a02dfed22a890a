"""Runs blocks on all devices in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import SpmdError
from ...ir.graph import Block, Module, Op, Value
from ...ir.groups import device_groups, permute_pairs, positions
from ...ir.mesh import Mesh
from ...ir.optable import COLLECTIVES
from ...ir.types import TensorType, numpy_dtype
from . import compute, elementwise, linear, random_bits, structure, windows

Array = np.ndarray
Devices = list[Array]  # one array per device; equal ones are one object where that is known
Env = dict[Value, Devices]
Around = Callable[[Op, list[Array], Callable[[list[Array]], list[Array]]], list[Array]]

_IDENTITY = {"relayout", "sharding_constraint", "optimization_barrier"}
_PLAIN: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": structure.broadcast_in_dim,
    "iota": structure.iota,
    "slice": structure.slice_,
    "pad": structure.pad,
    "dynamic_slice": structure.dynamic_slice,
    "dynamic_update_slice": structure.dynamic_update_slice,
    "splice": structure.splice,
    "dynamic_roll": structure.dynamic_roll,
    "gather": structure.gather,
    "dot_general": compute.dot_general,
    "chlo.ragged_dot": compute.ragged_dot,
    "convolution": windows.convolution,
    "fft": linear.fft,
    "cholesky": linear.cholesky,
    "triangular_solve": linear.triangular_solve,
    "rng_bit_generator": random_bits.rng_bit_generator,
    "chlo.top_k": compute.top_k,
    "transpose": lambda op, x: x.transpose(op.attrs["permutation"]),
    "reshape": lambda op, x: x.reshape(op.results[0].type.shape),
    "reverse": lambda op, x: np.flip(x, op.attrs["dimensions"]),
    "concatenate": lambda op, *xs: np.concatenate(xs, op.attrs["dimension"]),
}
_WITH_REGION = {
    "reduce": compute.reduce,
    "reduce_window": windows.reduce_window,
    "scatter": structure.scatter,
    "sort": compute.sort,
    "chlo.scan": compute.scan,
    "select_and_scatter": windows.select_and_scatter,
    "map": lambda op, args, each: each(args),
}
_CALLS = {f"lapack_{kind}potrf_ffi": linear.lapack_cholesky for kind in "sdcz"}
_COMBINE = {
    "sum": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class InterpretError(SpmdError):
    """An op that the interpreter doesn't know, or devices that go different ways."""


def run(module: Module, args: Sequence[Array], around: Around | None = None) -> list[Array]:
    """The results of a global module. `around(op, operands, compute)`: stands in for what an op computes, which is
    `compute(operands)`. Raises InterpretError for an op that it doesn't know."""
    machine = _Machine(module, Mesh([]), around)
    return [d[0] for d in machine.block(module.main.body, [[np.asarray(a)] for a in args], {})]


def run_devices(module: Module, args: Sequence[Devices]) -> list[Devices]:
    """The results of a per-device module: per argument, and per result, a list with each device's array. Raises
    InterpretError for an op that it doesn't know, and where devices disagree on the way through a branch, or through a loop in which they exchange something."""
    return _Machine(module, module.mesh).block(module.main.body, [list(a) for a in args], {})


class _Machine:
    def __init__(self, module: Module, mesh: Mesh, around: Around | None = None):
        self.module, self.mesh, self.n, self.around = module, mesh, mesh.size, around

    def block(self, block: Block, args: Sequence[Devices], outer: Env) -> list[Devices]:
        env: Env = dict(outer)
        env.update(zip(block.args, args, strict=True))
        for op in block.ops:
            try:
                results = self.op(op, [env[v] for v in op.operands], env)
            except InterpretError:
                raise
            except Exception as error:
                raise InterpretError(f"{op.loc} {op.name}: {type(error).__name__}: {error}") from error
            env.update(zip(op.results, results, strict=True))
        return [env[v] for v in block.returns]

    def op(self, op: Op, args: list[Devices], env: Env) -> list[Devices]:
        name = op.name
        if name in _IDENTITY:
            return args
        if name == "constant":
            type = op.results[0].type
            assert isinstance(type, TensorType)
            return [[op.attrs["value"].broadcast(type)] * self.n]
        if name == "axis_index":
            return [[np.asarray(p, np.int32) for p in positions(self.mesh, op.attrs["axes"])]]
        if "axes" in op.attrs:
            return [self.collective(op, x) for x in args]
        if name == "while":
            return self.loop(op, args, env)
        if name in ("case", "if"):
            return self.branch(op, args[0], env)
        if name in ("call", "composite"):
            callee = str(op.attrs.get("callee") or op.attrs["decomposition"]).lstrip("@")
            return self.block(self.module.functions[callee].body, args, {})
        return self.local(op, args)

    # ------------------------------------------------------------------------------------------ each device for itself
    def local(self, op: Op, args: list[Devices]) -> list[Devices]:
        columns: list[Devices] = [[] for _ in op.results]
        known: dict[tuple[int, ...], list[Array]] = {}
        for k in range(self.n):
            own = [x[k] for x in args]
            key = tuple(map(id, own))
            found = known.get(key)
            if found is None:
                found = known[key] = self.one(op, own)
            for column, value in zip(columns, found, strict=True):
                column.append(value)
        return columns

    def one(self, op: Op, args: list[Array]) -> list[Array]:
        """The results of an op on one device."""
        if self.around is not None:
            return self.around(op, args, lambda operands: self.plain(op, operands))
        return self.plain(op, args)

    def plain(self, op: Op, args: list[Array]) -> list[Array]:
        name = op.name
        if name in elementwise.SUPPORTED:
            return [elementwise.evaluate(op, args)]
        if name in ("bitcast_convert", "reduce_precision"):
            return [_bits(op, args[0])]
        if name in _PLAIN:
            found = _PLAIN[name](op, *args)
            return found if isinstance(found, list) else [found]
        if name in _WITH_REGION:
            return _WITH_REGION[name](op, args, *[self.scalars(r) for r in op.regions])
        if name == "custom_call" and op.attrs["call_target_name"] in _CALLS:
            return _CALLS[op.attrs["call_target_name"]](op, *args)
        raise InterpretError(f"{op.loc} the interpreter does not know {name}")

    def scalars(self, region: Block) -> Callable[[Sequence[Array]], list[Array]]:
        """A region of scalar ops, on whole arrays."""

        def call(args: Sequence[Array]) -> list[Array]:
            env: dict[Value, Array] = dict(zip(region.args, args, strict=True))
            for op in region.ops:
                if op.name == "constant":
                    env[op.results[0]] = op.attrs["value"].broadcast(op.results[0].type)
                else:
                    env[op.results[0]] = self.one(op, [env[v] for v in op.operands])[0]
            return [env[v] for v in region.returns]

        return call

    # ------------------------------------------------------------------------------------------ all devices together
    def agreed(self, op: Op, values: Devices) -> int:
        found = {v.item() for v in values}
        if len(found) > 1:
            raise InterpretError(f"{op.loc} {op.name}: devices go different ways: {sorted(found)}")
        return int(found.pop())

    def loop(self, op: Op, args: list[Devices], env: Env) -> list[Devices]:
        """Where nothing is sent in it, each device leaves a loop by itself."""
        condition, body = op.regions
        together = any(x.name in COLLECTIVES for region in op.regions for x in region.walk())
        while True:
            on = self.block(condition, args, env)[0]
            if together:
                self.agreed(op, on)
            if not any(v.item() for v in on):
                return args
            new = self.block(body, args, env)
            args = [
                [n if v.item() else o for n, o, v in zip(*x, on, strict=True)]
                for x in zip(new, args, strict=True)
            ]

    def branch(self, op: Op, index: Devices, env: Env) -> list[Devices]:
        taken = self.agreed(op, index)
        if op.name == "if":
            taken = 0 if taken else 1
        elif not 0 <= taken < len(op.regions):
            taken = len(op.regions) - 1
        return self.block(op.regions[taken], [], env)

    def collective(self, op: Op, x: Devices) -> Devices:
        a = op.attrs
        axes: tuple[str, ...] = a["axes"]
        if op.name == "collective_permute":
            return self.permute(op, x)
        out: Devices = [x[0]] * self.n
        for group in device_groups(self.mesh, axes):
            blocks = [x[k] for k in group]
            if op.name == "all_gather":
                whole = np.concatenate(blocks, a["dim"])
                for k in group:
                    out[k] = whole
            elif op.name == "all_to_all":
                pieces = [np.split(b, len(group), a["split_dim"]) for b in blocks]
                for j, k in enumerate(group):
                    out[k] = np.concatenate([p[j] for p in pieces], a["concat_dim"])
            elif op.name in ("all_reduce", "reduce_scatter"):
                total = blocks[0]
                with np.errstate(all="ignore"):
                    for b in blocks[1:]:
                        total = _combined(a["kind"], total, b)
                parts = np.split(total, len(group), a["dim"]) if op.name == "reduce_scatter" else None
                for j, k in enumerate(group):
                    out[k] = total if parts is None else parts[j]
            else:
                raise InterpretError(f"{op.loc} the interpreter does not know {op.name}")
        return out

    def permute(self, op: Op, x: Devices) -> Devices:
        out: Devices = [np.zeros_like(x[0])] * self.n
        for source, target in permute_pairs(self.mesh, op.attrs):
            out[target] = x[source]
        return out


def _combined(kind: str, a: Array, b: Array) -> Array:
    if a.dtype == np.bool_:
        kind = {"sum": "or", "max": "or", "mul": "and", "min": "and"}.get(kind, kind)
    if a.dtype.itemsize < 4 and a.dtype.kind in "fV":
        return _COMBINE[kind](a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
    return _COMBINE[kind](a, b)


def _bits(op: Op, x: Array) -> Array:
    if op.name == "reduce_precision":
        small = {(8, 7): "bfloat16", (5, 10): "float16"}.get(
            (op.attrs["exponent_bits"], op.attrs["mantissa_bits"])
        )
        if small is None:
            raise InterpretError(f"{op.loc} the interpreter does not know this reduce_precision")
        dtype = np.float16 if small == "float16" else ml_dtypes.bfloat16
        with np.errstate(all="ignore"):
            return x.astype(dtype).astype(x.dtype)
    type = op.results[0].type
    assert isinstance(type, TensorType)
    return np.ascontiguousarray(x).reshape(-1).view(numpy_dtype(type.dtype)).reshape(type.shape)
