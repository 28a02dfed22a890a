"""Shardy's annotations in the form they have while a module travels through HLO, which has no attributes of its own.

There they are strings, `mhlo.frontend_attributes = {xla.sdy.sharding = "..."}`, and what has no op in HLO is a custom
call. `read_round_trip` brings both back to Shardy's own attributes and ops. The names are those of XLA's
`xla/service/spmd/shardy/constants.h`.
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import LayoutError
from ...ir.annotations import split_shardings
from ...ir.clone import clone_block
from ...ir.graph import Block, Function, Module, Op, Raw, Value
from ...ir.scanner import unescape

_FRONTEND = "mhlo.frontend_attributes"
_PREFIX = "xla.sdy."
_ENTRY = re.compile(r'([\w.$-]+|"(?:[^"\\]|\\.)*") = ("(?:[^"\\]|\\.)*"|#sdy\.mesh<[^>]*>)')
_ATTRIBUTES = {
    "sharding": "sdy.sharding",
    "sharding_rule": "sdy.sharding_rule",
    "in_shardings": "in_shardings",
    "out_shardings": "out_shardings",
    "manual_axes": "manual_axes",
}
_RENAMED = {"PropagationBarrier": "sdy.propagation_barrier", "ShardingGroup": "sdy.sharding_group"}
_RESULT, _ENTER, _LEAVE = "FuncResultSharding", "GlobalToLocalShape", "LocalToGlobalShape"
_BODY = "xla.sdy.manual_computation_body"
_NO_SHARDINGS, _NO_AXES = Raw("#sdy.sharding_per_value<[]>"), Raw("#sdy<manual_axes{}>")


def read_round_trip(module: Module) -> None:
    """Rewrites an imported module in place. Raises LayoutError where the calls of a manual computation don't fit."""
    top = _take(module.attrs)
    if "meshes" in top:
        found = ((n, Raw(unescape(m[1:-1]) if m[0] == '"' else m)) for n, m in _ENTRY.findall(top["meshes"]))
        module.attrs["sdy.mesh"] = (*module.attrs.get("sdy.mesh", ()), *found)
    for function in module.functions.values():
        for attrs in (*function.arg_attrs, *function.result_attrs):
            _restore(attrs)
        for op in function.body.walk():
            if _FRONTEND in op.attrs:
                op.attrs = dict(op.attrs)
                _restore(op.attrs)
            op.name = _RENAMED.get(_target(op), op.name)
        _result_shardings(function)
    for key, dicts in (
        ("tuple_args_shardings", module.main.arg_attrs),
        ("tuple_results_shardings", module.main.result_attrs),
    ):
        if key in top:
            _spread(top[key], dicts)
    _Former(module).run()


def _spread(text: str, dicts: list[dict[str, Any]]) -> None:
    """Shardings of all arguments or results, as programs have that take one tuple."""
    shardings = split_shardings(text)
    if len(shardings) != len(dicts):
        raise LayoutError(f"{len(shardings)} shardings for {len(dicts)} values of @main: {text}")
    for attrs, sharding in zip(dicts, shardings, strict=True):
        attrs["sdy.sharding"] = Raw(f"#sdy.sharding{sharding}")


def _take(attrs: dict[str, Any]) -> dict[str, str]:
    """Shardy's entries among the frontend attributes, which are removed there, without their prefix."""
    raw = attrs.get(_FRONTEND)
    if not isinstance(raw, Raw) or _PREFIX not in raw.text:
        return {}
    found: dict[str, str] = {}
    rest: list[str] = []
    for entry in _ENTRY.finditer(raw.text):
        key = entry[1].strip('"')
        if key.startswith(_PREFIX):
            found[key.removeprefix(_PREFIX)] = unescape(entry[2][1:-1])
        else:
            rest.append(entry[0])
    del attrs[_FRONTEND]
    if rest:
        attrs[_FRONTEND] = Raw("{" + ", ".join(rest) + "}")
    return found


def _restore(attrs: dict[str, Any]) -> None:
    for key, text in _take(attrs).items():
        if key in _ATTRIBUTES:
            attrs[_ATTRIBUTES[key]] = Raw(text)


def _target(op: Op) -> str:
    """The custom call that an op of Shardy became, without its prefix; "" for any other op."""
    name = op.attrs.get("call_target_name", "") if op.name == "custom_call" else ""
    name = name.removeprefix("local_")
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def _result_shardings(function: Function) -> None:
    """The shardings of results, which HLO's functions have no place for."""
    body = function.body
    calls = {op.results[0]: op for op in body.ops if _target(op) == _RESULT}
    if not calls:
        return
    for i, value in enumerate(body.returns):
        call = calls.get(value)
        sharding = call.attrs.get("sdy.sharding") if call is not None else None
        if sharding is not None:
            function.result_attrs[i]["sdy.sharding"] = sharding
    env: dict[Value, Value] = {}
    for value, call in calls.items():
        env[value] = env.get(call.operands[0], call.operands[0])
    body.ops[:] = [op for op in body.ops if op.results[:1] == [] or op.results[0] not in calls]
    body.replace(env)


class _Former:
    """Makes `manual_computation` ops of calls of their bodies, between GlobalToLocalShape and LocalToGlobalShape."""

    def __init__(self, module: Module):
        self.module = module
        self.done: set[str] = set()
        self.bodies: set[str] = set()

    def run(self) -> None:
        for name in list(self.module.functions):
            self.function(name)
        for name in self.bodies.difference(["main"]):
            del self.module.functions[name]

    def function(self, name: str) -> None:
        if name in self.done or name not in self.module.functions:
            return
        self.done.add(name)
        self.block(self.module.functions[name].body)

    def block(self, block: Block) -> None:
        enters = {v: (op, i) for op in block.ops if _target(op) == _ENTER for i, v in enumerate(op.results)}
        leaves: dict[Value, Op] = {v: op for op in block.ops if _target(op) == _LEAVE for v in op.operands}
        ops: list[Op] = []
        for op in block.ops:
            for region in op.regions:
                self.block(region)
            if op.name != "call":
                ops.append(op)
            elif _BODY in op.attrs["callee"] or not enters.keys().isdisjoint(op.operands):
                ops.append(self.manual(op, enters, leaves))
            else:
                ops.append(op)
        block.ops[:] = [op for op in ops if _target(op) not in (_ENTER, _LEAVE)]

    def manual(self, call: Op, enters: dict[Value, tuple[Op, int]], leaves: dict[Value, Op]) -> Op:
        callee, where = call.attrs["callee"], str(call.loc)
        enter = next((enters[v][0] for v in call.operands if v in enters), None)
        leave = next((leaves[v] for v in call.results if v in leaves), None)
        # XLA drops what enters a region and is empty there, and the constant that stands for it is whole already.
        entered = len(enter.operands) if enter else 0
        if entered != len(call.operands) or (leave.operands if leave else []) != call.results:
            raise LayoutError(
                f"{where}: the operands of @{callee} don't all enter and leave its region together"
            )
        self.function(callee)
        self.bodies.add(callee)
        body = self.module.functions[callee].body
        axes = [op.attrs.get("manual_axes") for op in (enter, leave) if op is not None]
        attrs = {
            "in_shardings": enter.attrs["in_shardings"] if enter else _NO_SHARDINGS,
            "out_shardings": leave.attrs["out_shardings"] if leave else _NO_SHARDINGS,
            "manual_axes": next((a for a in axes if a is not None), _NO_AXES),
        }
        operands = list(enter.operands) if enter else []
        results = list(leave.results) if leave else []
        return Op("manual_computation", operands, results, attrs, (clone_block(body),), call.loc)
