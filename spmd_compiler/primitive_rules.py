"""Sharding rules of users' own primitives."""

from __future__ import annotations

from typing import Any

from . import compat
from .passes.rules.custom import UNIT
from .units import Unit, exactly, key_of

_rules: dict[Any, str] = {}
_units: dict[Any, Unit] = {}


def register_primitive(p: Any, rule: str) -> None:
    """`p` becomes a unit with this rule, in programs that are compiled from now on."""
    _rules[p] = rule
    _units.clear()


def lower_primitives() -> None:
    """Has JAX lower them as units within programs of ours, also those whose lowering was registered meanwhile."""
    for p in _rules:
        compat.lower_inside(p, _marker_of(p))


def _marker_of(p: Any) -> Any:
    def marker(ins: Any, outs: Any, **params: Any) -> compat.Marker:
        unit = _unit(p, params)
        return compat.Marker(UNIT, key_of(unit), unit.rule, unit)

    return marker


def _unit(p: Any, params: dict[str, Any]) -> Unit:
    def run(*args: Any) -> list[Any]:
        outs = p.bind(*args, **params)
        return list(outs) if p.multiple_results else [outs]

    unit = Unit(p.name, lambda results: run, _rules[p])
    try:
        return _units.setdefault((p, tuple((k, exactly(v)) for k, v in sorted(params.items()))), unit)
    except TypeError:  # not hashable: two such calls are two units
        return unit
