"""`spmd_jit`: a function of global arrays, run as one program per device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import jax

from . import compat, compat_executables
from .constraint import fixed_mesh
from .errors import ArgumentError, MeshError
from .layout import is_layout_leaf
from .lowered import Lowered
from .mesh import Mesh, check_global
from .passes.pipeline import Options
from .placement import Placer, check_deleted, check_donations, mesh_of
from .signature import Call, Signature
from .specialization import Specialization
from .tracing import current_mesh


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
    else replicated; for a result: the compiler chooses. `in_layouts` may also be a dict by parameter name. No mesh:
    that of the layouts, of the arguments, or of `default_mesh`. The other arguments are those of `jax.jit`.

    Raises a subclass of `SpmdError` for bad input, before anything runs.
    """
    keywords = {
        "mesh": mesh,
        "in_layouts": in_layouts,
        "out_layouts": out_layouts,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "options": options,
    }
    if fun is None:
        return functools.partial(spmd_jit, **keywords)
    if not callable(fun):
        raise ArgumentError(f"spmd_jit wants a function, not {fun!r}")
    return SpmdFunction(fun, **keywords)


class SpmdFunction:
    """What `spmd_jit` returns: call it, or see what it compiles to with `.lower(*args)`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        mesh: Mesh | jax.sharding.Mesh | None,
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
        self._signature = Signature(fun, static_argnums, static_argnames, donate_argnums, donate_argnames)
        self._signature.check_static_layouts(in_layouts)
        self._in_layouts, self._out_layouts = in_layouts, out_layouts
        self._mesh = fixed_mesh(mesh, in_layouts, out_layouts)
        self._options = Options.checked(options)
        self._placer = Placer(self._signature.fun_name)
        self.clear_cache()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._dispatch(*args, **kwargs)
        except compat_executables.InvalidValue as error:
            what = compat_executables.invalid_value(error)
        except (ValueError, RuntimeError):
            call = self._signature.bind(args, kwargs)  # raises for statics without a hash
            check_deleted(call.leaves, call.paths)
            check_donations(call.leaves, call.paths, call.donated)
            raise
        self._find_invalid(args, kwargs)
        raise FloatingPointError(f"{what} in the result of {self._signature.fun_name}, but not op by op")

    def _find_invalid(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs the function op by op, as `jax.jit` does then: JAX raises where an op makes the invalid value. Not with arguments that
        are donated, and gone."""
        if not any(map(compat_executables.is_deleted, jax.tree.leaves((args, kwargs)))):
            self._fun(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<spmd_jit of {self._signature.fun_name}>"

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """What `jax.jit` of this function traces, for arguments like these: its jaxpr has the partitioned program inside.
        `jax.export` takes it."""
        signature = self._signature
        return jax.jit(
            self,
            static_argnums=tuple(sorted(signature.static_nums)),
            static_argnames=tuple(sorted(signature.static_names)),
            donate_argnums=tuple(sorted(signature.donated_nums)),
            donate_argnames=tuple(sorted(signature.donated_names)),
        ).trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Compiles for arguments like these (arrays or `jax.ShapeDtypeStruct`) and returns every stage."""
        call = self._signature.bind(args, kwargs)
        made, _ = self._specialize(call)
        return made.lowered()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The result's shapes and dtypes for arguments like these, without compiling."""
        made, _ = self._specialize(self._signature.bind(args, kwargs))
        return made.out_info

    def clear_cache(self) -> None:
        """Forgets what was compiled."""
        self._made: dict[Any, Specialization] = {}
        # JAX's dispatcher remembers a signature's executable and runs it without any Python of ours.
        self._dispatch = compat_executables.cpp_dispatch(
            self._signature.fun_name,
            self._miss,
            tuple(sorted(self._signature.static_nums)),
            tuple(sorted(self._signature.static_names)),
        )

    def _miss(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        """A call with a signature that the dispatcher doesn't know."""
        call = self._signature.bind(args, kwargs)
        if compat.is_tracing() or any(isinstance(x, jax.core.Tracer) for x in call.leaves):
            check_global(self._signature.fun_name)
            made, _ = self._specialize(call)
            return made.traced_call(call.leaves), None, False
        made, fixed = self._specialize(call)
        check_donations(call.leaves, call.paths, call.donated)
        moved = self._placer.place(call.leaves, call.paths, made.partitioned.in_shardings, made.mesh)
        if moved is not None or not fixed:
            return made.executable(*(call.leaves if moved is None else moved)), None, False
        return compat_executables.compiled_miss(made.executable, call.leaves)

    def _specialize(self, call: Call) -> tuple[Specialization, bool]:
        """The specialization for a call, and whether the dispatcher may remember it: it can't know of `default_mesh`."""
        mesh, fixed = self._mesh, True
        if mesh is None:
            mesh = mesh_of(call.leaves, call.paths)
        if mesh is None:
            mesh, fixed = current_mesh(), False
        if mesh is None:
            raise MeshError(
                f"{self._signature.fun_name} has no mesh: give spmd_jit one, enter a default_mesh, or pass arguments "
                "that lie on one"
            )
        specs = self._signature.leaf_specs(self._in_layouts, call, is_layout_leaf)
        made = Specialization(self._fun, call, mesh, specs, self._out_layouts, self._options)
        known = self._made.get(made.key)
        if known is None:
            made.trace()
            known = made
            if made.is_reusable:
                self._made[made.key] = made
        return known, fixed
