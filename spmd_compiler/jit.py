"""`spmd_jit`: a function of global arrays, run as one program per device."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from . import compat
from .errors import ArgumentError, LayoutError, MeshError
from .ir import layout as ir_layout
from .layout import Layout, is_layout_leaf, leaf_layout
from .lowered import Lowered
from .mesh import Mesh, get_default_mesh
from .passes.pipeline import Options
from .program import Program, call_p


def spmd_jit(
    fun: Callable[..., Any] | None = None,
    *,
    mesh: Mesh | None = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    options: Options | None = None,
) -> Any:
    """Compiles a function of global arrays into one program per device of `mesh`. Usable bare, as a decorator.

    `in_layouts`, `out_layouts`: pytree prefixes of the arguments and of the result, with leaves `Layout`,
    `PartitionSpec`, `NamedSharding` or None. None for an argument: its own sharding if it is a committed `jax.Array`,
    else replicated; for a result: the compiler chooses. No mesh: that of `default_mesh`, or of the arguments.
    The other arguments are those of `jax.jit`. Raises a subclass of `SpmdError` for bad input, before anything runs.
    """
    if fun is None:
        return functools.partial(
            spmd_jit,
            mesh=mesh,
            in_layouts=in_layouts,
            out_layouts=out_layouts,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            options=options,
        )
    return SpmdFunction(
        fun,
        mesh,
        in_layouts,
        out_layouts,
        static_argnums,
        static_argnames,
        donate_argnums,
        donate_argnames,
        options,
    )


def _tuple(x: Any) -> tuple[Any, ...]:
    return (x,) if isinstance(x, (int, str)) else tuple(x)


class SpmdFunction:
    """What `spmd_jit` returns. Call it, or look at what it compiles to with `.lower(*args)`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        mesh: Mesh | None,
        in_layouts: Any,
        out_layouts: Any,
        static_argnums: Any,
        static_argnames: Any,
        donate_argnums: Any,
        donate_argnames: Any,
        options: Options | None,
    ):
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._mesh = mesh
        self._in_layouts = in_layouts
        self._out_layouts = out_layouts
        self._options = options or Options()
        names = _parameters(fun)
        self._static = {names.index(n) if n in names else n for n in _tuple(static_argnames)}
        self._static |= {i % len(names) if names else i for i in _tuple(static_argnums)}
        self._donated = {names.index(n) if n in names else n for n in _tuple(donate_argnames)}
        self._donated |= {i % len(names) if names else i for i in _tuple(donate_argnums)}
        self._names = names
        self._compiled: dict[Any, Any] = {}
        self._fast: Any = None
        self._warned = False
        if isinstance(in_layouts, (tuple, list)):
            for i in self._static:
                if isinstance(i, int) and i < len(in_layouts) and in_layouts[i] is not None:
                    raise LayoutError(
                        f"in_layouts[{i}]: argument {names[i] if i < len(names) else i!r} is static, and has no layout; "
                        "give None for it"
                    )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fast = self._fast
        if fast is not None and not kwargs:
            try:
                return fast(*args)
            except ValueError:
                self._fast = None  # an argument lies elsewhere: look at all of them
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = _Call(self, args, kwargs)
        if call.mesh.is_abstract:
            raise MeshError("the mesh is abstract: it compiles with .lower(), but has no devices to run on")
        jitted = self._jitted(call)
        leaves = [call.place(k) for k in range(len(call.leaves))]
        placed = jax.tree.unflatten(call.treedef, leaves)
        if not kwargs and not self._static and call.explicit and len(self._compiled) == 1:
            self._fast = jitted
        return jitted(*placed)

    def _jitted(self, call: _Call) -> Any:
        key = (call.mesh, call.statics, call.treedef, call.layouts if not call.explicit else None)
        jitted = self._compiled.get(key) or self._compiled.get((*key, call.shapes))
        if jitted is None:
            shardings = [Layout.from_ir(x, call.mesh).to_jax() for x in call.layouts]
            donate = tuple(k for k, i in enumerate(call.dynamic) if i in self._donated)
            inner = call.traceable()
            inner.__name__ = getattr(self._fun, "__name__", "spmd")
            out_shardings = call.fine_outputs()
            if out_shardings is not None:
                key = (*key, call.shapes)
            jitted = jax.jit(
                inner,
                in_shardings=jax.tree.unflatten(call.treedef, shardings),
                donate_argnums=donate,
                **({} if out_shardings is None else {"out_shardings": out_shardings}),
            )
            self._compiled[key] = jitted
        return jitted

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Compiles for arguments like these (arrays or `jax.ShapeDtypeStruct`) and returns every stage."""
        call = _Call(self, args, kwargs)
        if call.mesh.is_abstract:
            call.traceable()
            program, tree = call.program(call.avals())
            return Lowered(program, call.treedef, tree, None)
        traced = self._jitted(call).trace(*jax.tree.unflatten(call.treedef, call.avals()))
        program = next(e.params["program"] for e in traced.jaxpr.jaxpr.eqns if e.primitive is call_p)
        tree = jax.tree.structure(traced.out_info)
        return Lowered(program, call.treedef, tree, traced)


def _parameters(fun: Callable[..., Any]) -> list[str]:
    try:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [p.name for p in inspect.signature(fun).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):
        return []


class _Call:
    """The arguments of one call, flattened: dynamic leaves, their layouts, and the static values."""

    def __init__(self, owner: SpmdFunction, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.owner = owner
        self._traced: tuple[list[Any], Program, Any] | None = None
        args, kwargs = _positional(owner, args, kwargs)
        self.n_args = len(args)
        slots: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        self.dynamic = [k for k, _ in slots if k not in owner._static]
        self.statics = tuple((k, v) for k, v in slots if k in owner._static)
        values = tuple(v for k, v in slots if k not in owner._static)
        self.leaves, self.treedef = jax.tree.flatten(values)
        self.paths = [
            owner_name(owner, self.dynamic, path)
            for path, _ in jax.tree_util.tree_flatten_with_path(values)[0]
        ]
        specs = self._specs(values)
        self.mesh = self._find_mesh(specs)
        self.explicit = all(s is not None for s in specs)
        self.layouts = tuple(
            self._layout(leaf, spec, path)
            for leaf, spec, path in zip(self.leaves, specs, self.paths, strict=True)
        )

    def _specs(self, values: tuple[Any, ...]) -> list[Any]:
        given = self.owner._in_layouts
        if given is None or is_layout_leaf(given):
            return [given] * len(self.leaves)
        if not isinstance(given, (tuple, list)):
            given = (given,)
        if len(given) > self.n_args:
            raise ArgumentError(
                f"in_layouts has {len(given)} entries, but the call has {self.n_args} arguments"
            )
        out: list[Any] = []
        for k, value in zip(self.dynamic, values, strict=True):
            prefix = given[k] if isinstance(k, int) and k < len(given) else None
            out += broadcast_prefix(prefix, value, f"in_layouts[{k}]")
        return out

    def _find_mesh(self, specs: list[Any]) -> Mesh:
        mesh = self.owner._mesh or get_default_mesh()
        if mesh is not None:
            return mesh
        for spec in specs:
            if isinstance(spec, Layout):
                return spec.mesh
            if isinstance(spec, NamedSharding):
                return Mesh.from_jax(spec.mesh)
        for leaf in self.leaves:
            sharding = getattr(leaf, "sharding", None)
            if isinstance(sharding, NamedSharding):
                return Mesh.from_jax(sharding.mesh)
        raise MeshError("spmd_jit has no mesh: give mesh=, a default_mesh, or arguments that lie on one")

    def _layout(self, leaf: Any, spec: Any, path: str) -> ir_layout.Layout:
        shape = np.shape(leaf)
        rank = len(shape)
        sharding = getattr(leaf, "sharding", None)
        if (
            isinstance(leaf, jax.Array)
            and not isinstance(leaf, jax.core.Tracer)
            and leaf.committed
            and not self.mesh.is_abstract
        ):
            assert self.mesh.devices is not None
            if len(leaf.devices()) > 1 and set(leaf.devices()) != set(self.mesh.devices):
                raise MeshError(f"{path} lies on other devices than {self.mesh!r}; move it with copy_to_mesh")
        if spec is None:
            if isinstance(sharding, NamedSharding) and dict(sharding.mesh.shape) == self.mesh.shape:
                return Layout.from_jax(sharding, rank).ir
            return ir_layout.Layout.replicated(rank)
        layout = leaf_layout(spec, self.mesh, rank, path)
        for d, axes in enumerate(layout.dims):
            n = self.mesh.axes_size(axes)
            if shape[d] % n:
                raise LayoutError(
                    f"{path}: dim {d} of size {shape[d]} is not divisible by {'.'.join(axes)} of size {n} in layout "
                    f"{layout}; pad it, or leave it unsharded"
                )
        return layout

    def place(self, k: int) -> Any:
        """Leaf `k` where the program wants it; a committed array in another layout is relaid, with one warning."""
        leaf, owner = self.leaves[k], self.owner
        if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or not leaf.committed:
            return leaf
        want = Layout.from_ir(self.layouts[k], self.mesh).to_jax()
        if leaf.sharding.is_equivalent_to(want, leaf.ndim):
            return leaf
        if not owner._warned:
            owner._warned = True
            warnings.warn(
                f"{self.paths[k]} of {owner._fun.__name__} lies as {leaf.sharding}, not as {self.layouts[k]}: "
                f"{leaf.nbytes} bytes are relaid at every such call",
                stacklevel=4,
            )
        return jax.device_put(leaf, want)

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple((a.shape, a.dtype) for a in self.avals())

    def fine_outputs(self) -> Any:
        """Shardings for results that only a finer mesh can express (sub-axes); None if there are none. JAX would try to
        write them over the mesh of the arguments."""
        program, tree = self.program(self.avals())
        if not any(":" in a for layout in program.out_layouts for a in layout.axes):
            return None
        return jax.tree.unflatten(tree, [Layout.from_ir(x, self.mesh).to_jax() for x in program.out_layouts])

    def avals(self) -> list[Any]:
        return [
            jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.canonicalize_dtype(_dtype(x))) for x in self.leaves
        ]

    def traceable(self) -> Any:
        def inner(*values: Any) -> Any:
            leaves = jax.tree.leaves(values)
            program, tree = self.program(leaves)
            consts = program.jaxpr_consts  # type: ignore[attr-defined]
            return jax.tree.unflatten(tree, call_p.bind(*consts, *leaves, program=program))

        return inner

    def program(self, leaves: list[Any]) -> tuple[Program, Any]:
        """The traced program for leaves of these shapes, and the structure of its result."""
        owner = self.owner
        avals = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False)) for x in leaves
        ]
        if self._traced is not None and self._traced[0] == avals:
            return self._traced[1:]
        trees: list[Any] = []

        def flat(*xs: Any) -> list[Any]:
            values = dict(zip(self.dynamic, jax.tree.unflatten(self.treedef, xs), strict=True)) | dict(
                self.statics
            )
            args = [values[i] for i in range(self.n_args)]
            out = owner._fun(*args, **{k: v for k, v in values.items() if isinstance(k, str)})
            flat_out, tree = jax.tree.flatten(out)
            trees.append((out, tree))
            return flat_out

        with (
            self.mesh.to_jax()
            if not self.mesh.is_abstract
            else jax.sharding.use_abstract_mesh(self.mesh.to_jax())
        ):
            closed = jax.make_jaxpr(flat)(*avals)
        out, tree = trees[-1]
        given = self.owner._out_layouts
        specs = (
            broadcast_prefix(given, out, "out_layouts")
            if given is not None
            else [None] * len(closed.out_avals)
        )
        wanted = [
            None if s is None else leaf_layout(s, self.mesh, len(a.shape), f"out_layouts[{k}]")
            for k, (s, a) in enumerate(zip(specs, closed.out_avals, strict=True))
        ]
        consts = list(closed.consts)
        jaxpr = compat.consts_as_args(closed)
        layouts = [ir_layout.Layout.replicated(len(np.shape(c))) for c in consts] + list(self.layouts)
        program = Program(
            jaxpr, self.mesh, layouts, wanted, owner._options, getattr(owner._fun, "__name__", "spmd")
        )
        program.jaxpr_consts = consts  # type: ignore[attr-defined]
        self._traced = (avals, program, tree)
        return program, tree


def _dtype(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else np.result_type(x)


def owner_name(owner: SpmdFunction, dynamic: list[int | str], path: tuple[Any, ...]) -> str:
    """`params['w1']` for the path of a leaf."""
    slot = dynamic[path[0].idx]
    name = (
        slot if isinstance(slot, str) else owner._names[slot] if slot < len(owner._names) else f"args[{slot}]"
    )
    return name + jax.tree_util.keystr(path[1:])


def _positional(
    owner: SpmdFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Keyword arguments that have a position, in their position."""
    rest = dict(kwargs)
    out = list(args)
    for name in owner._names[len(args) :]:
        if name not in rest:
            break
        out.append(rest.pop(name))
    return tuple(out), rest


def broadcast_prefix(prefix: Any, tree: Any, where: str) -> list[Any]:
    """The leaf of `prefix` above each leaf of `tree`. Raises ArgumentError where their structures differ."""
    try:
        out: list[Any] = []
        jax.tree.map(
            lambda leaf, sub: out.extend([leaf] * len(jax.tree.leaves(sub))),
            prefix,
            tree,
            is_leaf=is_layout_leaf,
        )
        return out
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"{where} is not a prefix of the structure it describes: {error}") from None
