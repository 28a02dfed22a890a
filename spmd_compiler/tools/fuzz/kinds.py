"""What a random program may contain: each kind adds an op (or a few) to a scope, or nothing where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from . import kinds_compute as compute
from . import kinds_control as control
from . import kinds_elementwise as elementwise
from . import kinds_linear as linear
from . import kinds_lookup as lookup
from . import kinds_moves as moves
from . import kinds_windows as windows
from .scope import Scope

Kind = Callable[[Scope], object]
Kinds = Sequence[tuple[Kind, float]]


def fill(s: Scope, count: int, kinds: Kinds, after: Callable[[], None] = lambda: None) -> None:
    """Adds ops of random kinds until there are `count`; `after` is called after each."""
    makers, weights = zip(*kinds, strict=True)
    for _ in range(4 * count):
        if len(s.block.ops) >= count:
            return
        s.rng.choices(makers, weights)[0](s)
        after()


_EXACT_STRAIGHT: list[tuple[Kind, float]] = [
    (elementwise.unary, 2),
    (elementwise.binary, 8),
    (elementwise.compare, 1),
    (elementwise.ask, 0.5),
    (elementwise.select, 2),
    (elementwise.clamp, 1),
    (elementwise.convert, 2),
    (elementwise.parts, 1),
    (elementwise.bitcast, 1),
    (elementwise.mapped, 0.5),
    (moves.broadcast, 3),
    (moves.transpose, 3),
    (moves.reshape, 4),
    (moves.reverse, 2),
    (moves.slice_, 4),
    (moves.pad, 3),
    (moves.concatenate, 3),
    (moves.roll, 2),
    (moves.iota, 1),
    (compute.dot_general, 5),
    (compute.reduce, 4),
    (compute.argmax, 1),
    (compute.sort, 2),
    (compute.top_k, 1),
    (compute.random_bits, 0.3),
    (windows.reduce_window, 3),
    (windows.select_and_scatter, 1.5),
    (windows.convolution, 3),
    (lookup.dynamic_slice, 2),
    (lookup.dynamic_update_slice, 2),
    (lookup.gather, 3),
    (lookup.scatter, 3),
    (control.barrier, 0.5),
]
_ROUNDING_STRAIGHT: list[tuple[Kind, float]] = [
    *_EXACT_STRAIGHT,
    (elementwise.function, 10),
    (elementwise.of_two, 6),
    (elementwise.reduce_precision, 1),
    (linear.fft, 4),
    (linear.cholesky, 1),
    (linear.lapack, 0.5),
    (linear.triangular_solve, 2),
]


def _with_regions(straight: Kinds) -> list[tuple[Kind, float]]:
    inside = partial(fill, kinds=straight)
    return [
        *straight,
        (partial(control.loop, fill=inside), 1),
        (partial(control.scan, fill=inside), 1),
        (partial(control.branch, fill=inside), 1),
        (partial(control.call, fill=inside), 0.5),
    ]


EXACT_KINDS = _with_regions(_EXACT_STRAIGHT)
ROUNDING_KINDS = _with_regions(_ROUNDING_STRAIGHT)
