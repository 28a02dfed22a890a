"""What a program costs: bytes each device sends (ring model), messages, and local work.

Ring model, group of n, bytes per device: all-reduce 2(n-1)/n·B, all-gather (n-1)/n·B_out, reduce-scatter (n-1)/n·B_in,
all-to-all (n-1)/n·B, collective-permute B (Thakur, Rabenseifner, Gropp 2005). The assignment of layouts compares costs
in bytes: a collective counts as `Prices.message` more, local work as `WORK` per byte touched and `FLOP` per operation. These
are of the order of what accelerators do while a link sends one byte; sums that no link speed would change decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir.graph import Module
from ..ir.layout import local_type
from ..ir.mesh import Mesh
from ..ir.types import TensorType

if TYPE_CHECKING:
    from .relayout_steps import Step

WORK = 5e-3  # bytes that touching one byte of memory weighs: memory is far faster than a link, and most touches fuse
FLOP = 1e-2  # bytes that one floating point operation weighs: most run far below a chip's peak


@dataclass(frozen=True)
class Prices:
    """message: bytes that one more collective weighs, which is what a link sends while one starts."""

    message: float = 1024.0


def prices(mesh: Mesh) -> Prices:
    """What a mesh's links cost, for the program that is on it."""
    return mesh.cache.get("prices", USUAL)


def priced(module: Module) -> Module:
    """The module on a mesh of its own with prices. A program whose largest value has less bytes than some messages weigh is
    all latency, whichever way it runs: there bytes should decide, so messages weigh in proportion to that value."""
    values = [v for op in module.walk() for v in op.results] + module.main.body.args
    largest = max((v.type.nbytes for v in values), default=0)
    mesh = Mesh(module.mesh.axes)
    mesh.cache["prices"] = Prices(min(USUAL.message, largest / 16))
    return Module(mesh, module.functions, module.name, module.attrs)


USUAL = Prices()


def ring_bytes(kind: str, group: int, operand_bytes: float) -> float:
    """Bytes that a device sends for one collective; `operand_bytes` is the per-device operand."""
    n = group
    if n <= 1:
        return 0.0
    if kind == "all_reduce":
        return 2 * (n - 1) / n * operand_bytes
    if kind == "all_gather":
        return (n - 1) * operand_bytes
    if kind in ("reduce_scatter", "all_to_all"):
        return (n - 1) / n * operand_bytes
    if kind == "collective_permute":
        return operand_bytes
    raise ValueError(f"unknown collective {kind!r}")


def step_cost(step: Step, type: TensorType, mesh: Mesh) -> float:
    """Cost of one step of a relayout plan, in bytes."""
    local = local_type(type, step.source, mesh).nbytes
    target = local_type(type, step.target, mesh).nbytes
    touched, message = WORK * (local + target), prices(mesh).message
    if step.kind in ("slice", "to_partial"):
        return touched
    if step.kind == "reblock":
        return touched + message + local  # two neighbours exchange at most a block
    if step.kind == "collective_permute":
        return touched + message + local
    if step.kind == "exchange":
        return 2 * touched + mesh.axes_size(step.axes) * message + local
    if step.kind == "all_gather":
        n = mesh.axes_size(step.axes)
        return touched + message + (n - 1) * local
    if step.kind in ("reduce_scatter", "all_to_all"):
        # the dim that is split may have to be padded to a multiple first
        n = mesh.axes_size(step.axes)
        return (
            touched
            + message
            + (n - 1) / n * max(local, target * n if step.kind == "reduce_scatter" else target)
        )
    return touched + message + ring_bytes(step.kind, mesh.axes_size(step.axes), local)
