"""The programs of the golden files, and how to write the files anew: `python -m tests.golden.programs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import spmd_compiler as spmd

spmd.configure_virtual_cpus(8)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from spmd_compiler import ir  # noqa: E402
from spmd_compiler.passes.expand import Expand  # noqa: E402
from spmd_compiler.passes.optimize import Optimize  # noqa: E402
from spmd_compiler.passes.prepare.merge_moves import MergeMoves  # noqa: E402
from spmd_compiler.passes.propagate import Propagate  # noqa: E402
from spmd_compiler.passes.simplify import Simplify  # noqa: E402

FOLDER = Path(__file__).parent
AFTER = "// ----- after\n"
PASSES: dict[str, Any] = {
    "simplify": Simplify(),
    "merge_moves": MergeMoves(),
    "propagate": Propagate(),
    "expand": Expand(),
    "optimize": Optimize(),
    "rings": Optimize(rings=True),
}
AB = spmd.create_mesh([("a", 4), ("b", 2)], abstract=True)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def scan(w, x):
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0]


def accumulate(w, xs):
    def body(total, x):
        return total + x.T @ (x @ w), None

    return lax.scan(body, jnp.zeros_like(w), xs)[0]


def constrained(x):
    return spmd.relayout(spmd.relayout(x * 2, P("a")), P(None, "a")) + 1


# name -> (passes that are shown, function, arguments, layouts of the arguments, layout of the result)
PROGRAMS: dict[str, tuple[str, Any, tuple[Any, ...], tuple[Any, ...], Any]] = {
    "megatron": (
        "propagate expand optimize",
        lambda x, w, v: jax.nn.relu(x @ w) @ v,
        (f32(64, 32), f32(32, 64), f32(64, 32)),
        (P("a"), P(None, "b"), P("b")),
        P("a"),
    ),
    "reduce_scatter": (
        "expand",
        lambda x, w: x @ w,
        (f32(64, 32), f32(32, 64)),
        (P(None, "a"), P("a")),
        P("a"),
    ),
    "embedding": ("propagate expand", lambda t, i: t[i], (f32(64, 8), i32(16)), (P("b"), P("a")), P("a")),
    "argmax": ("expand", lambda x: jnp.argmax(x, 1), (f32(8, 64),), (P(None, "a"),), P()),
    "softmax": (
        "propagate expand",
        lambda x: jax.nn.softmax(x, -1),
        (f32(8, 64),),
        (P(None, "a"),),
        P(None, "a"),
    ),
    "scan": ("propagate", scan, (f32(16, 16), f32(8, 16)), (P(), P("a")), P("a")),
    "accumulate": ("propagate expand", accumulate, (f32(16, 16), f32(3, 64, 16)), (P(), P(None, "a")), P()),
    "branches": (
        "propagate",
        lambda i, x: lax.cond(i > 0, lambda v: v * 2, lambda v: v + 1, x),
        (i32(), f32(8, 4)),
        (P(), P("a")),
        P("a"),
    ),
    "uneven": (
        "propagate expand",
        lambda x: spmd.relayout(x * 2, P("a")).sum(0),
        (f32(10, 6),),
        (P(),),
        P(),
    ),
    "partial_through_add": (
        "propagate expand",
        lambda x, w, v: x @ w + x @ v,
        (f32(16, 32), f32(32, 16), f32(32, 16)),
        (P(None, "a"), P("a"), P("a")),
        P(),
    ),
    "reshape_split": ("propagate expand", lambda x: x.reshape(2, 8, 4), (f32(16, 4),), (P("a"),), None),
    "transpose": ("propagate", lambda x: x.T + 1, (f32(16, 8),), (P("a", "b"),), P("b", "a")),
    "shared_relayout": (
        "expand optimize",
        lambda x: (x.sum(0), x.T @ x),
        (f32(16, 8),),
        (P(None, "a"),),
        None,
    ),
    "relayouts": ("propagate", constrained, (f32(16, 16),), (P("a"),), P()),
    "halo": ("merge_moves expand", lambda x: x[1:] - x[:-1], (f32(33, 4),), (P(),), P("a")),
    "combine": (
        "optimize",
        lambda x, y: (x.sum(0), y.sum(0)),
        (f32(16, 4), f32(16, 4)),
        (P("a"), P("a")),
        P(),
    ),
    "collective_matmul": (
        "rings",
        lambda x, w, v: jax.nn.relu(x @ w) @ v,
        (f32(8, 64), f32(64, 128), f32(128, 64)),
        (P("a"), P(None, "a"), P("a")),
        P("a"),
    ),
    "calls": (
        "simplify",
        lambda x: jax.jit(lambda v: jnp.sin(v) + jnp.sin(v))(x) * jax.jit(lambda v: jnp.sin(v))(x),
        (f32(8),),
        (P("a"),),
        P("a"),
    ),
}


def pairs(name: str) -> dict[str, tuple[str, str]]:
    """Per pass the module before and after it."""
    shown, function, args, layouts, result = PROGRAMS[name]
    step = spmd.spmd_jit(function, mesh=AB, in_layouts=layouts, out_layouts=result)
    module = ir.parse(plain(step.lower(*args).as_text("import")))
    found: dict[str, tuple[str, str]] = {}
    for pass_name, run in PASSES.items():
        before = plain(str(module))
        module = run(ir.parse(before))
        if pass_name in shown.split():
            found[pass_name] = before, plain(str(module))
    return found


def plain(text: str) -> str:
    """Without source lines, which change with every edit of a test."""
    return re.sub(r" +// .*", "", text)


def main() -> None:
    for name in PROGRAMS:
        for pass_name, (before, after) in pairs(name).items():
            (FOLDER / f"{name}.{pass_name}.spmd").write_text(before + AFTER + after)


if __name__ == "__main__":
    main()
