"""What a device runs, as the body of a program on global arrays: one manual computation, in Shardy's terms, over all axes."""

from __future__ import annotations

from collections.abc import Sequence

from .ir.graph import Block, Function, Module, Op, Raw, Value, constant
from .ir.layout import Axes, Layout
from .ir.types import TensorType


def global_form(module: Module, ins: Sequence[Layout], outs: Sequence[Layout]) -> Module:
    """A module whose `main` takes and returns global arrays, in these layouts, and does what `module` does on each device."""
    mesh, main = module.mesh, module.main
    symbol, meshes = _mesh(module)

    def sharding(value: Value, layout: Layout) -> str:
        dims = ("{" + ", ".join(map(_axis, axes)) + "}" for axes in _dims(value, layout))
        return f"<@{symbol}, [{', '.join(dims)}]>"

    inside, returned = main.body.args, main.body.returns
    args = [Value(_whole(module, v, x), name=v.name) for v, x in zip(inside, ins, strict=True)]
    results = [Value(_whole(module, v, x)) for v, x in zip(returned, outs, strict=True)]
    given = [sharding(v, x) for v, x in zip(inside, ins, strict=True)]
    left = [sharding(v, x) for v, x in zip(returned, outs, strict=True)]
    # XLA fails on a region whose arguments all lack elements: those don't enter it
    full = [i for i, v in enumerate(inside) if v.type.size]
    empty = [_empty(v) for v in inside if not v.type.size]
    region = Block([inside[i] for i in full], [*empty, *main.body.ops], returned)
    axes = ", ".join(f'"{a}"' for a in mesh.shape)
    attrs = {
        "in_shardings": _per_value([given[i] for i in full]),
        "out_shardings": _per_value(left),
        "manual_axes": Raw(f"#sdy<manual_axes{{{axes}}}>"),
    }
    body = Block(
        args, [Op("manual_computation", [args[i] for i in full], results, attrs, (region,))], results
    )
    arg_attrs, result_attrs = (
        [{**old, "sdy.sharding": Raw(f"#sdy.sharding{x}")} for old, x in zip(dicts, texts, strict=True)]
        for dicts, texts in ((main.arg_attrs, given), (main.result_attrs, left))
    )
    functions = {**module.functions, "main": Function("main", body, True, arg_attrs, result_attrs)}
    return Module(mesh, functions, module.name, {**module.attrs, "sdy.mesh": meshes})


def _mesh(module: Module) -> tuple[str, tuple[tuple[str, Raw], ...]]:
    """The symbol of the module's mesh, and all meshes that it then has."""
    sizes = ", ".join(f'"{a}"={n}' for a, n in module.mesh.axes)
    mesh, known = Raw(f"#sdy.mesh<[{sizes}]>"), module.attrs.get("sdy.mesh", ())
    for symbol, other in known:
        if other == mesh:
            return symbol, known
    symbol = "mesh"
    while symbol in dict(known):
        symbol += "_"
    return symbol, (*known, (symbol, mesh))


def _dims(value: Value, layout: Layout) -> tuple[Axes, ...]:
    """The axes of each dim; random keys have dims behind those that the program sees."""
    return (*layout.dims, *((),) * (value.type.rank - layout.rank))


def _whole(module: Module, value: Value, layout: Layout) -> TensorType:
    type = value.type
    assert isinstance(type, TensorType)
    return type.with_shape(
        tuple(
            n * module.mesh.axes_size(axes) for n, axes in zip(type.shape, _dims(value, layout), strict=True)
        )
    )


def _empty(value: Value) -> Op:
    assert isinstance(value.type, TensorType)
    made = constant(value.type, 0)
    return Op(made.name, [], [value], made.attrs)


def _axis(axis: str) -> str:
    name, colon, piece = axis.partition(":")
    return f'"{name}"{colon}{piece}'


def _per_value(shardings: Sequence[str]) -> Raw:
    return Raw(f"#sdy.sharding_per_value<[{', '.join(shardings)}]>")
