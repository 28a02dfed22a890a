"""The compiler as a partitioner for StableHLO from anywhere: `from_stablehlo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from . import compat
from .errors import ArgumentError, ParseError
from .ir import layout as ir_layout
from .ir import mesh as ir_mesh
from .ir.annotations import AnnotationError
from .ir.graph import Module
from .ir.importer import import_module
from .ir.types import TensorType, numpy_dtype
from .layout import Layout, is_layout_leaf, leaf_layout
from .lowered import Compiled, Lowered
from .mesh import Mesh
from .passes.annotate import Annotate
from .passes.pipeline import Options, compile_module
from .program import Program, call_p

_DONORS = ("jax.buffer_donor", "tf.aliasing_output")


def from_stablehlo(
    text_or_module: Any,
    *,
    mesh: Mesh | None = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    options: Options | None = None,
) -> Lowered:
    """Partitions a StableHLO module, given as text or as an MLIR module, by the annotations in it.

    Honoured: `sdy.mesh` and `sdy.sharding`, `sdy.sharding_constraint`, `sdy.manual_computation`; `mhlo.sharding`
    strings with their `@Sharding`, `@SPMDFullToShardShape` and `@SPMDShardToFullShape` custom calls.

    `mesh`: the mesh to use, an `spmd.Mesh` or `jax.sharding.Mesh`; by default the program's own, over the first
    devices, or abstract if there are too few. `in_layouts`, `out_layouts`: one leaf for all or a sequence with one
    per argument and result; a leaf overrides the program's annotation, None keeps it. Where there is neither, the
    compiler chooses. What runs takes the arguments of `@main` one by one and returns a tuple of its results.

    Raises ParseError for malformed text (line and column), LayoutError and MeshError for annotations that do not
    fit their value, and ArgumentError for layouts of the wrong number.
    """
    public = Mesh.from_jax(mesh) if mesh is not None and not isinstance(mesh, Mesh) else mesh
    if public is None:
        public = _mesh_of((in_layouts, out_layouts))
    module = _import(text_or_module, public)
    if public is None:
        public = _with_devices(module.mesh)
    main = module.main
    args, results = main.body.args, main.body.returns
    for i, leaf in enumerate(_leaves(in_layouts, len(args), "in_layouts")):
        if leaf is not None:
            args[i].layout = leaf_layout(leaf, public, args[i].type.rank, f"in_layouts[{i}]")
    for i, leaf in enumerate(_leaves(out_layouts, len(results), "out_layouts")):
        if leaf is not None:
            found = leaf_layout(leaf, public, results[i].type.rank, f"out_layouts[{i}]")
            main.result_attrs[i]["layout"] = found
    donated = [i for i, attrs in enumerate(main.arg_attrs) if any(key in attrs for key in _DONORS)]
    stages = compile_module(module, options or Options())
    return _lowered(stages, public, options or Options(), tuple(donated))


def _import(source: Any, mesh: Mesh | None) -> Module:
    try:
        return Annotate(mesh)(import_module(source, mesh or ir_mesh.Mesh([])))
    except AnnotationError as error:
        text = source if isinstance(source, str) else str(source)
        at = max(0, text.find(error.text)) + error.column - 1
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise ParseError(f"StableHLO text, line {line}, column {column}: {error}", line, column) from None


def _mesh_of(layouts: Any) -> Mesh | None:
    found = [x for x in jax.tree.leaves(layouts, is_leaf=is_layout_leaf) if isinstance(x, Layout)]
    return found[0].mesh if found else None


def _with_devices(mesh: ir_mesh.Mesh) -> Mesh:
    devices = jax.devices()
    return Mesh(mesh.axes, devices[: mesh.size]) if len(devices) >= mesh.size else Mesh(mesh.axes)


def _leaves(layouts: Any, count: int, name: str) -> Sequence[Any]:
    if is_layout_leaf(layouts):
        return [layouts] * count
    leaves = jax.tree.leaves(layouts, is_leaf=is_layout_leaf)
    if len(leaves) != count:
        raise ArgumentError(
            f"{name} has {len(leaves)} layouts, but @main has {count}; give one for each, or None"
        )
    return leaves


class _Signature(NamedTuple):
    """What `Program` asks of a jaxpr."""

    in_avals: list[Any]
    out_avals: list[Any]


class _ModuleProgram(Program):
    """A program that came as StableHLO, and is compiled already."""

    def __init__(
        self,
        stages: dict[str, Module],
        signature: _Signature,
        mesh: Mesh,
        in_layouts: Sequence[ir_layout.Layout],
        options: Options,
    ):
        super().__init__(signature, mesh, in_layouts, [None] * len(signature.out_avals), options, "main")
        self._stages = stages


def _lowered(stages: dict[str, Module], mesh: Mesh, options: Options, donated: tuple[int, ...]) -> Lowered:
    settled = stages["propagate"].main.body
    signature = _Signature([_aval(v.type) for v in settled.args], [_aval(v.type) for v in settled.returns])
    in_layouts = [v.layout or ir_layout.Layout.replicated(v.type.rank) for v in settled.args]
    program = _ModuleProgram(stages, signature, mesh, in_layouts, options)
    in_tree = jax.tree.structure(tuple(signature.in_avals))
    out_tree = jax.tree.structure(tuple(signature.out_avals))
    if mesh.is_abstract:
        return Lowered(program, in_tree, out_tree, None)
    shardings = [Layout.from_ir(x, mesh).to_jax() for x in in_layouts]

    def main(*args: Any) -> tuple[Any, ...]:
        return tuple(call_p.bind(*args, program=program))

    jitted = jax.jit(main, in_shardings=tuple(shardings), donate_argnums=donated)
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in signature.in_avals]
    return _Lowered(program, in_tree, out_tree, jitted.trace(*avals), shardings)


class _Lowered(Lowered):
    def __init__(self, program: Program, in_tree: Any, out_tree: Any, traced: Any, shardings: list[Any]):
        super().__init__(program, in_tree, out_tree, traced)
        self._shardings = shardings

    def compile(self) -> Compiled:
        return _Compiled(self._traced.lower().compile(), self._shardings)


class _Compiled(Compiled):
    """Takes arrays as they lie: the caller need not know which layouts the compiler chose."""

    def __init__(self, executable: Any, shardings: list[Any]):
        super().__init__(executable)
        self._shardings = shardings

    def __call__(self, *args: Any) -> Any:
        if len(args) != len(self._shardings):
            raise ArgumentError(f"@main takes {len(self._shardings)} arguments, not {len(args)}")
        return self._executable(*jax.device_put(list(args), self._shardings))


def _aval(type: Any) -> Any:
    assert isinstance(type, TensorType)
    return compat.shaped_array(type.shape, numpy_dtype(type.dtype))
