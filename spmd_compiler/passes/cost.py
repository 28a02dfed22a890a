"""What a program costs: bytes each device sends (ring model), messages, and local work.

Ring model, group of n, bytes per device: all-reduce 2(n-1)/n·B, all-gather (n-1)/n·B_out, reduce-scatter (n-1)/n·B_in,
all-to-all (n-1)/n·B, collective-permute B (Thakur, Rabenseifner, Gropp 2005). The assignment of layouts compares costs
in bytes: collectives and local work weigh what `Prices` says. The usual ones are of the order of what accelerators do while
a link sends one byte, with messages cheap, so that few bytes come first; those of a hardware model minimise its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..ir.graph import Module, Op
from ..ir.layout import local_block, local_type
from ..ir.mesh import Mesh
from ..ir.optable import RAGGED, collective_kind
from ..ir.types import TensorType
from .emit.halo import block_window, moves_price, window_moves
from .hardware import PRESETS, Hardware
from .written_collectives import reach

if TYPE_CHECKING:
    from .relayout.steps import Step


class Work(NamedTuple):
    """What an op does on its whole operands. touched: bytes read and written; flops: operations on `dtype`."""

    touched: float = 0.0
    flops: float = 0.0
    dtype: str = "f32"

    @classmethod
    def over(cls, op: Op, intensity: float = 0.0) -> Work:
        """Reading the operands and writing the results, with `intensity` operations per byte."""
        touched = sum(v.type.nbytes for v in op.operands + op.results)
        return cls(touched, intensity * touched)

    def at_memory_speed(self) -> Work:
        """The same where nothing else hides what is touched."""
        return self._replace(flops=self.flops + BUSY * self.touched)


@dataclass(frozen=True)
class Prices:
    """What things weigh, in bytes over the usual link. message: one more collective, which is what a link sends while one
    starts. touch: a byte of memory; memory is far faster than a link, and most touches fuse. As on real chips, a message
    takes as long as touching some 50 MB: below that, elementwise work is rather repeated than spread at equal bytes. flop:
    an operation, between what those on 16 and on 32 bits take. stored: bytes of the largest value that enters or leaves the
    program. What an op touches beyond three of these is made by broadcasting, as the pairs of n bodies are: its arithmetic
    counts, like that of the matrix product that would make it. hardware: prices by mesh axis and element type, instead.
    room: bytes of a device's block of a value, above which it is dear: less where a program has to need less memory.
    riding: times the bytes of a message that it weighs at most, where what is small goes with others (`combine`)."""

    message: float = 512.0
    touch: float = 1e-5
    flop: float = 1.3e-3
    hardware: Hardware | None = None
    stored: float = math.inf
    room: float = math.inf
    riding: float = math.inf

    @classmethod
    def of(cls, hardware: Hardware) -> Prices:
        link = hardware.link_bandwidth
        return cls(
            hardware.link_latency * link,
            FUSED * link / hardware.memory_bandwidth,
            link / hardware.peak("default"),
            hardware,
        )

    def work(self, work: Work) -> float:
        hw = self.hardware
        flop = self.flop if hw is None else hw.link_bandwidth / hw.peak(work.dtype)
        expanded = max(0.0, work.touched - 3 * self.stored) * EXPANDED
        return self.touch * work.touched + flop * (work.flops + expanded)

    @property
    def bytes_first(self) -> bool:
        """Whether no program may send more than another one, however much better it is otherwise."""
        return self.hardware is None and self.room == math.inf

    def hold(self, block: float, there: float = 0.0) -> float:
        """A block of some bytes, made of one that has as many as are `there`."""
        return CRAMPED * (1 + self.message / self.room) * max(0.0, block - max(there, self.room))

    def send(self, axes: Iterable[str], sent: float, messages: float = 1) -> float:
        """Some messages over mesh axes, with the bytes that a device sends in all of them."""
        hw = self.hardware
        if hw is None or not hw.axes:
            weight = messages * self.message
            return sent + (weight if self.riding == math.inf else min(weight, self.riding * sent))
        bandwidth, latency = hw.link(tuple(axes))
        return (sent / bandwidth + messages * latency) * hw.link_bandwidth


OFTEN = 256  # times the largest value that enters or leaves the program, beyond which what an op in a loop touches is work
BUSY = 1.0  # operations a byte that it touches then: far less than on any device, as bytes come first
EXPANDED = 1 / 16  # operations a byte: slower off the matrix units, and much hides behind memory
CRAMPED = 256.0  # a byte of a block that is larger than there is room for
FUSED = 1 / 3  # of the bytes that ops touch one by one, what reaches memory when XLA has fused them
SMALL = 4400  # a message weighs at most this part of a program's largest value: the small programs of the zoo send least so
TINY = 8  # work weighs less where messages weigh this many times less than usual
JOINED = 3 / 4  # of a message: an all-reduce often goes with others (`combine`)
RIDING = 64  # times the bytes of a message, what it weighs at most where messages are dear
DEFER = 0.01  # an op that passes a partial on: behind the reduction it would fuse with what reads it. Decides ties only
USUAL = Prices()
TIMED = Prices.of(PRESETS["cpu"])  # those of time on slow links, where messages are not cheap


def prices(mesh: Mesh) -> Prices:
    """What a mesh's links cost, for the program that is on it."""
    return mesh.cache.get("prices", USUAL)


def priced(module: Module, hardware: Hardware | None, room: float = math.inf) -> Module:
    """The module on a mesh of its own with prices. A program whose largest value has less bytes than some messages weigh is
    all latency, whichever way it runs: there bytes should decide, so messages weigh in proportion to that value, and so
    does work in a far smaller one: it is not worth a message."""
    body = module.main.body
    made = [v for op in module.walk() for v in op.results]
    largest = max((v.type.nbytes for v in (*made, *body.args)), default=0)
    stored = max((v.type.nbytes for v in (*body.args, *body.returns)), default=0)
    message = min(USUAL.message, largest / SMALL)
    work = min(1.0, TINY * message / USUAL.message)
    small = replace(USUAL, message=message, touch=USUAL.touch * work, flop=USUAL.flop * work, stored=stored)
    return _with_prices(module, replace(small if hardware is None else Prices.of(hardware), room=room))


def with_work(module: Module, times: float) -> Module:
    """The module on a mesh of its own on which operations weigh some times of what they do. Relayouts cost the same: what is
    known of them is shared."""
    usual = prices(module.mesh)
    other = _with_prices(module, replace(usual, flop=times * usual.flop))
    other.mesh.cache = {**module.mesh.cache, **other.mesh.cache}
    return other


def by_time(module: Module) -> Module:
    """The module on a mesh of its own on which messages and operations weigh what they do in time; but messages that have little to
    send next to nothing."""
    return _with_prices(
        module, replace(prices(module.mesh), message=TIMED.message, flop=TIMED.flop, riding=RIDING)
    )


def with_room(module: Module, room: float) -> Module:
    """The module on a mesh of its own on which blocks of more than `room` bytes are dear. Relayouts that make none are those of
    the module's mesh."""
    other = _with_prices(module, replace(prices(module.mesh), room=room))
    if prices(module.mesh).room == math.inf:
        other.mesh.cache["roomy"] = module.mesh
    return other


def _with_prices(module: Module, prices: Prices) -> Module:
    mesh = Mesh(module.mesh.axes)
    mesh.cache["prices"] = prices
    return Module(mesh, module.functions, module.name, module.attrs)


def ring_bytes(kind: str, group: int, operand_bytes: float) -> float:
    """Bytes that a device sends for one collective; `operand_bytes` is the per-device operand."""
    n = group
    if n <= 1:
        return 0.0
    if kind == "all_reduce":
        return 2 * (n - 1) / n * operand_bytes
    if kind == "all_gather":
        return (n - 1) * operand_bytes
    if kind in ("reduce_scatter", "all_to_all", RAGGED):
        return (n - 1) / n * operand_bytes
    if kind in ("collective_permute", "collective_broadcast"):
        return operand_bytes
    raise ValueError(f"unknown collective {kind!r}")


def sent_bytes(op: Op, mesh: Mesh) -> float:
    """Bytes that a device sends for a collective of a per-device program."""
    kind = collective_kind(op) or op.name
    # of a ragged exchange the others are what it is written into, and where
    operands = op.operands[:1] if kind == RAGGED else op.operands
    return ring_bytes(kind, reach(op, mesh)[1], sum(v.type.nbytes for v in operands))


def step_cost(step: Step, type: TensorType, mesh: Mesh) -> float:
    """Cost of one step of a relayout plan, in bytes."""
    block = local_type(type, step.target, mesh)
    local, target, price = local_type(type, step.source, mesh).nbytes, block.nbytes, prices(mesh)
    touched = price.touch * (local + target)
    if target > price.room:
        touched += price.hold(target, local)
    if not step.sends:
        return touched
    n = mesh.axes_size(step.axes)
    sent, messages = float(local), 1.0  # a permute
    if step.kind == "reblock":
        size = type.shape[step.dim]
        have, want = (local_block(x, step.dim, size, mesh) for x in (step.source, step.target))
        sent, messages = moves_price(window_moves(n, have, block_window(want, size)), local / have)
    elif step.kind == "exchange":
        touched, messages = 2 * touched, n
    elif step.kind in ("reduce_scatter", "all_to_all"):
        # the dim that is split may have to be padded to a multiple first
        sent = (n - 1) / n * max(local, target * n if step.kind == "reduce_scatter" else target)
        if step.kind == "all_to_all" and step.order != step.axes:
            touched += 2 * price.touch * local  # its pieces change places first
    elif step.kind != "collective_permute":
        sent, messages = ring_bytes(step.kind, n, local), JOINED if step.kind == "all_reduce" else 1.0
    if step.kind in ("reduce_scatter", "all_gather") and math.prod(block.shape[: step.dim]) > 1:
        # the blocks lie in pieces: XLA copies what is large, so that they lie together
        touched += 2 * price.touch * max(local, target)
    return touched + price.send(step.axes or step.source.axes | step.target.axes, sent, messages)
