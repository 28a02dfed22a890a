"""Judges strategies: executes an op as one says, on all devices, and compares with the whole."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...ir.graph import Block, Function, Module, Op, Value
from ...ir.groups import positions
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.types import TensorType, is_complex, is_float
from ...ir.verify import verify
from ...passes.expand import Expand
from ...passes.rules.base import Placement, R, Rule, Strategy
from ...passes.search.engine import Engine
from ...passes.search.legalise import legalise
from ...passes.verify import verify_layouts
from ..fuzz.generate import arguments
from ..interpret import InterpretError, cut, join, run, run_devices

MESHES: tuple[tuple[int, ...], ...] = ((2,), (3,), (4,), (2, 2), (3, 2), (2, 2, 2))
PAIRS = 40  # combinations of strategies tried on a mesh of several axes


class Verdict(NamedTuple):
    checked: int
    incorrect: tuple[str, ...]
    missing: tuple[str, ...]  # placements that are right without any rule for them


def judge(module: Module, seed: int = 0) -> Verdict:
    """Every strategy of the module's last op over each mesh; combinations of them where there are several axes."""
    args = arguments(module, seed)
    want = run(module, args)
    checked, wrong = 0, []
    rng = random.Random(seed)
    for sizes in MESHES:
        mesh = Mesh(list(zip("abc", sizes, strict=False)))
        rule = rule_of(module, mesh)
        ways = [s for s in rule.strategies if sensible(s, module.main.body.ops[-1])]
        picks = list(itertools.islice(itertools.product(range(len(ways)), repeat=len(sizes)), 4000))
        if len(sizes) > 1 and len(picks) > PAIRS:
            picks = rng.sample(picks, PAIRS)
        for pick in picks:
            chosen = tuple(ways[i] for i in pick)
            text = _try(module, mesh, chosen, args, want)
            if text is not None:
                checked += 1
                if text:
                    wrong.append(f"{mesh} {[describe(s) for s in chosen]}: {text}")
    return Verdict(checked, tuple(wrong), tuple(_missing(module, args, want)))


def rule_of(module: Module, mesh: Mesh) -> Rule:
    engine = engine_of(Module(mesh, module.functions))
    return engine.book.rule(module.main.body.ops[-1])


def engine_of(module: Module) -> Engine:
    """An engine for the module that knows its scalar constants."""
    engine = Engine(module)
    for op in module.main.body.ops:
        if op.name == "constant" and not op.results[0].type.rank:
            engine.book.scalars[op.results[0]] = op.attrs["value"]
    return engine


def arranged(module: Module, target: Op, picks: Sequence[Strategy]) -> Module | None:
    """The module with one of its ops run by one strategy per mesh axis, all else replicated; None if they don't go
    together."""
    engine, body = engine_of(module), module.main.body
    axes = tuple(module.mesh.shape)
    for v in body.args:
        engine.layouts[v] = Layout.replicated(v.type.rank)
    for op in body.ops:
        order = (axes, tuple(picks)) if op is target else ((), ())
        way = engine.book.rule(op).way(*order, op.operands, op.results, module.mesh)
        if way is None:
            return None
        engine.choices[op] = way
        engine.layouts.update(zip(op.results, way.results, strict=True))
        for v, layout in zip(op.operands, way.demands, strict=True):
            engine.want(v, layout)
    whole = [Layout.replicated(v.type.rank) for v in body.returns]
    for v, layout in zip(body.returns, whole, strict=True):
        engine.want(v, layout)
    return module.with_body(legalise(engine, body, whole))


def _try(
    module: Module,
    mesh: Mesh,
    picks: Sequence[Strategy],
    args: Sequence[np.ndarray],
    want: Sequence[np.ndarray],
) -> str | None:
    """ "" if right, what is wrong, or None where the strategies can't be combined."""
    spread = arranged(Module(mesh, module.functions), module.main.body.ops[-1], picks)
    if spread is None:
        return None
    try:
        verify_layouts(spread)
        expanded = Expand()(spread)
        verify(expanded)
        results = run_devices(expanded, [[a] * mesh.size for a in args])
        got = [join(r, Layout.replicated(w.ndim), w.shape, mesh) for r, w in zip(results, want, strict=True)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if all(_same(g, w) for g, w in zip(got, want, strict=True)) else "another result"


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if want.dtype.kind in "biu":
        return np.array_equal(got, want)
    return np.allclose(
        got.astype(np.complex128), want.astype(np.complex128), rtol=1e-3, atol=1e-3, equal_nan=True
    )


def sensible(strategy: Strategy, op: Op) -> bool:
    """Partials of a kind that the values' type has no such reduction for don't occur."""
    values = zip((*op.operands, *op.results), (*strategy.operands, *strategy.results), strict=True)
    return all(_fits(v, place) for v, place in values if isinstance(place, str))


def _fits(value: Value, kind: str) -> bool:
    assert isinstance(value.type, TensorType)
    dtype = value.type.dtype
    if dtype == "i1":
        return kind in ("and", "or", "xor")
    if is_complex(dtype):
        return kind in ("sum", "mul")
    return kind not in ("and", "or", "xor") or not is_float(dtype)


def describe(strategy: Strategy) -> str:
    def spell(place: Placement) -> str:
        return "-" if place == R else f"{place}" if isinstance(place, int) else f"+{place}"

    ins, outs = (" ".join(map(spell, x)) for x in (strategy.operands, strategy.results))
    return f"{ins} → {outs}"


# ------------------------------------------------------------------------------------------ missing rules
def _missing(module: Module, args: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> Iterator[str]:
    """Placements over an axis of two under which each device, running the op on its blocks alone, is right. An instance
    that only passes an operand on (a scatter beyond the bounds) tells nothing."""
    mesh, op = Mesh([("a", 2)]), module.main.body.ops[-1]
    rule = rule_of(module, mesh)
    claimed = {(s.operands, s.results) for s in rule.strategies}
    inputs = _operands(module, args)
    if any(_same(x, w) for x in inputs for w in want):
        return
    options = [[R, *_even_dims(v)] for v in op.operands]
    for ins in itertools.islice(itertools.product(*options), 1, 200):
        shards = [_shards(x, place, mesh) for x, place in zip(inputs, ins, strict=True)]
        found = _locally(module, op, shards)
        if found is None:
            continue
        places: list[list[Placement]] = []
        for j, w in enumerate(want):
            parts = [f[j] for f in found]
            places.append([p for p in _explanations(op.results[j]) if _explains(p, parts, w, mesh)])
        if all(places):
            outs = tuple(p[0] for p in places)
            if not any((ins, o) in claimed for o in itertools.product(*places)):
                yield describe(Strategy(ins, outs))


def _operands(module: Module, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the last op reads."""
    body = module.main.body
    before = Function("main", Block(body.args, body.ops[:-1], list(body.ops[-1].operands)))
    return run(Module(Mesh([]), {"main": before}), args)


def _even_dims(value: Value) -> list[int]:
    return [d for d, n in enumerate(value.type.shape) if n and n % 2 == 0]


def _shards(x: np.ndarray, place: Placement, mesh: Mesh) -> list[np.ndarray]:
    if not isinstance(place, int) or place == R:
        return [x, x]
    return cut(x, _along(place, x.ndim), mesh)


def _along(dim: int, rank: int) -> Layout:
    return Layout(tuple(("a",) if d == dim else () for d in range(rank)))


def _locally(module: Module, op: Op, shards: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]] | None:
    """The op on each device's operands, with types to match; None if it does not fit them."""
    found: list[list[np.ndarray]] = []
    for k in range(2):
        own = [s[k] for s in shards]
        values = [Value(TensorType(x.shape, v.type.dtype)) for x, v in zip(own, op.operands, strict=True)]
        local = Op(op.name, values, [Value(v.type) for v in op.results], op.attrs, op.regions)
        block = Block(values, [local], list(local.results))
        try:
            found.append(run(Module(Mesh([]), {"main": Function("main", block)}), own))
        except InterpretError:
            return None
    return found


def _explanations(value: Value) -> list[Placement]:
    kinds = [k for k in ("sum", "max", "min") if _fits(value, k)]
    return [*range(value.type.rank), *kinds]


def _explains(place: Placement, parts: Sequence[np.ndarray], want: np.ndarray, mesh: Mesh) -> bool:
    if isinstance(place, str):
        if any(p.shape != want.shape for p in parts):
            return False
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[place]
        return _same(combine(*parts).astype(want.dtype), want) and not _same(parts[0], want)
    if want.shape[place] % 2 or not want.size:
        return False
    blocks = cut(want, _along(place, want.ndim), mesh)
    return all(_same(p, blocks[int(k)]) for p, k in zip(parts, positions(mesh, ("a",)), strict=True))
