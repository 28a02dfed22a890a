"""The same programs by others: the compiler's whole path through XLA, and the StableHLO reference interpreter.

Both take the program from its StableHLO. So import, export and what runs are tested too, and our interpreter with them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import jax
import numpy as np

from ...frontend import from_stablehlo
from ...ir.exporter import export_text
from ...ir.graph import Block, Function, Module, Op, Value, constant
from ...ir.layout import Layout as IrLayout
from ...ir.mesh import Mesh as IrMesh
from ...ir.optable import COMBINE, reducer_kind
from ...ir.types import TensorType, numpy_dtype
from ...layout import Layout
from ...mesh import Mesh
from ...passes.emit.builder import identity_value
from ..interpret import run
from .check import compare
from .generate import arguments
from .scope import COMPLEX

# XLA and the reference interpreter have functions of their own, which are less precise than numpy's.
TOLERANCE = 4096.0


class Refused(Exception):
    """A program that the other side does not take; the message says why."""


def unpinned(module: Module) -> Module:
    """The module without `relayout` ops, which StableHLO does not know."""
    functions = {
        name: Function(name, _without(f.body, {}), f.public, f.arg_attrs, f.result_attrs)
        for name, f in module.functions.items()
    }
    return Module(module.mesh, functions)


def _without(block: Block, to: dict[Value, Value]) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        operands = [to.get(v, v) for v in op.operands]
        if op.name == "relayout":
            to[op.results[0]] = operands[0]
        else:
            regions = tuple(_without(r, to) for r in op.regions)
            ops.append(Op(op.name, operands, op.results, op.attrs, regions, op.loc))
    return Block(block.args, ops, [to.get(v, v) for v in block.returns])


# ------------------------------------------------------------------------------------------------ XLA
def through_xla(module: Module, args: Sequence[np.ndarray], partitioned: bool = True) -> list[np.ndarray]:
    """What `from_stablehlo` makes of the module's StableHLO computes on virtual devices, or on one. Raises Refused where
    there are not enough of them, and for custom calls, which want more than the IR's attributes."""
    devices = jax.devices()
    if module.mesh.size > len(devices):
        raise Refused("too few devices")
    if any(op.name == "custom_call" for op in module.walk()):
        raise Refused("a custom call")
    mesh = Mesh(module.mesh.axes, devices[: module.mesh.size]) if partitioned else Mesh([], devices[:1])
    layouts = [
        Layout.from_ir(v.layout if partitioned and v.layout else IrLayout.replicated(v.type.rank), mesh)
        for v in module.main.body.args
    ]
    lowered = from_stablehlo(export_text(unpinned(module)), mesh=mesh, in_layouts=layouts)
    return [np.asarray(x) for x in lowered.compile()(*args)]


# ------------------------------------------------------------------------------------------------ the reference
class Reference:
    """The StableHLO reference interpreter, in a process of its own: it ends its process for what it does not know."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def run(self, module: Module, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Raises Refused where the reference interpreter gives up, or means something else than XLA."""
        if any(op.name == "scatter" for op in module.walk()):
            # It writes into its operand, which others may read, and takes part of a window that does not fit.
            raise Refused("its scatter is another")
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        closed, returns = _closed(module, args), module.main.body.returns
        try:
            parts = iter(self._pool.submit(_evaluate, str(closed)).result())
        except BrokenProcessPool:
            self._pool = None
            raise Refused("it ended its process") from None
        return [
            (next(parts) + 1j * next(parts)).astype(numpy_dtype(v.type.dtype))
            if v.type.dtype in COMPLEX
            else next(parts)
            for v in returns
        ]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _closed(module: Module, args: Sequence[np.ndarray]) -> Module:
    """The module with its arguments as constants, its complex results, which have no Python form, in parts, and each
    select_and_scatter with its init behind it."""
    made: list[Op] = []
    for value, array in zip(module.main.body.args, args, strict=True):
        assert isinstance(value.type, TensorType)
        made.append(constant(value.type, array))
    fresh = dict(zip(module.main.body.args, (op.result for op in made), strict=True))
    body = _without(module.main.body, fresh)
    functions = {name: f for name, f in unpinned(module).functions.items() if name != "main"}
    for block in (body, *(f.body for f in functions.values())):
        _add_inits_once(block)
    returns: list[Value] = []
    split: list[Op] = []
    for value in body.returns:
        if value.type.dtype in COMPLEX:
            real = TensorType(value.type.shape, "f32" if value.type.dtype == "c64" else "f64")
            ops = [Op(name, [value], [Value(real)]) for name in ("real", "imag")]
            split += ops
            returns += [op.result for op in ops]
        else:
            returns.append(value)
    main = Function("main", Block([], [*made, *body.ops, *split], returns))
    return Module(IrMesh([]), {"main": main, **functions})


def _add_inits_once(block: Block) -> None:
    """The reference adds the init of a select_and_scatter to an element with each of its sources."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _add_inits_once(region)
        type = op.results[0].type if op.results else None
        kind = reducer_kind(op.regions[1]) if op.name == "select_and_scatter" else None
        if kind is None or not isinstance(type, TensorType):
            ops.append(op)
            continue
        x, source, init = op.operands
        nothing = constant(TensorType((), type.dtype), np.asarray(identity_value(kind, type.dtype)))
        sums = Op(op.name, [x, source, nothing.result], [Value(type)], op.attrs, op.regions)
        inits = Op("broadcast_in_dim", [init], [Value(type)], {"broadcast_dimensions": ()})
        ops += [nothing, sums, inits, Op(COMBINE[kind], [inits.result, sums.result], op.results)]
    block.ops[:] = ops


def _evaluate(text: str) -> list[np.ndarray]:
    from jaxlib.mlir._mlir_libs import _stablehlo

    from ...ir import parse
    from ...ir.constants import read_dense
    from ...ir.exporter import export_module

    module = parse(text)
    out = export_module(module)
    with out.context:
        results = _stablehlo.eval_module(out, [])
        return [
            np.array(read_dense(r, v.type).broadcast(v.type))
            for r, v in zip(results, module.main.body.returns, strict=True)
            if isinstance(v.type, TensorType)
        ]


class Outside:
    """Judges programs by both. `refused`: how often one did not take a program, or meant something else than XLA; `wrong`: how often XLA computes another
    result without any partitioning, too."""

    def __init__(self) -> None:
        self.reference = Reference()
        self.refused = self.wrong = 0

    def failure(self, module: Module) -> str:
        """ "" if neither contradicts our interpreter, else what is wrong; the side's name first."""
        args = arguments(module)
        want = run(module, args)
        for name, side in (("xla", through_xla), ("reference", self.reference.run)):
            try:
                got = side(module, args)
            except Refused:
                self.refused += 1
                continue
            except Exception as error:
                return f"{name}: {type(error).__name__}: {error}"
            text = compare(module, args, want, got, TOLERANCE).text
            if text and name == "xla" and not self.alone(module, args, want):
                self.wrong += 1
                continue
            if text:
                return f"{name}: result: {text}"
        return ""

    def alone(self, module: Module, args: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> bool:
        """Whether XLA on one device computes what is wanted."""
        got = through_xla(module, args, partitioned=False)
        return not compare(module, args, want, got, TOLERANCE).text

    def close(self) -> None:
        self.reference.close()
