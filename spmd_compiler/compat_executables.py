"""Beside `compat`, the other file that touches JAX internals: programs that XLA compiles without `jax.jit`, and their dispatch.

`jax.jit(jax.shard_map(...))` runs such programs too, and a JAX whose internals look different does (`is_known`). But it traces
and lowers them once more, and XLA then looks for what to partition in them: for small programs that takes longer than all that
this compiler does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import api_util as _api_util
from jax._src import compiler as _compiler
from jax._src import dispatch as _dispatch
from jax._src import lib as _lib
from jax._src import stages as _stages
from jax._src import tree_util as _tree_util
from jax._src.interpreters import pxla as _pxla
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]
from jaxlib.mlir import ir

from . import xla_threads

Miss = Callable[..., tuple[Any, Any, bool]]
Placed = Sequence[tuple[Any, Any]]  # structs with their shardings
Options = Mapping[str, Any]

# XLA looks for nothing to partition in a program of replicas. Arrays of newer JAX can't be what that returns: they have the
# executable's shape, which would be that of one shard.
RUNS_REPLICAS = getattr(_lib, "jaxlib_extension_version", 495) < 495 or getattr(_lib, "ifrt_version", 71) < 71

# Until then XLA for CPUs ends the process where an argument has been deleted, as one that was donated before.
CHECKS_DELETED = not RUNS_REPLICAS

# What a program raises whose result has what `jax_debug_nans` and `jax_debug_infs` look for; JAX itself catches it.
InvalidValue: type[Exception] = getattr(_api_util, "InternalFloatingPointError", FloatingPointError)


# What `compile_program` calls, and the arguments that it gives.
_CALLED = {
    "get_compile_options": (
        _compiler,
        "num_replicas num_partitions device_assignment backend env_options_overrides",
    ),
    "compile_or_get_cached": (
        _compiler,
        "backend computation devices compile_options host_callbacks executable_devices",
    ),
    "should_tuple_args": (_dispatch, "num_args platform"),
    "log_elapsed_time": (_dispatch, "fmt fun_name event"),
    "_get_layouts_from_executable": (
        _pxla,
        "xla_executable in_layouts out_layouts num_ordered_effects in_avals out_avals",
    ),
    "get_dispatch_layouts": (_pxla, "xla_in_layouts in_shardings in_avals"),
    "make_args_info": (_stages, "in_tree in_avals donate_argnums"),
    "Compiled": (_stages, "executable const_args args_info out_tree no_kwargs"),
}
_FIELDS = """xla_executable device_list backend input_avals input_shardings output_avals output_shardings committed name
    unordered_effects ordered_effects keepalive host_callbacks kept_var_idx mut xla_in_layouts dispatch_in_layouts
    xla_out_layouts all_args_info pgle_profiler"""


def runs_replicas(platform: str | None) -> bool:
    """Whether devices of a platform run a program as replicas. TPUs don't: XLA shards the updates that follow an all-reduce between
    replicas, and gathers the results by another all-reduce (weight update sharding, Xu et al. 2020), which sends more."""
    return RUNS_REPLICAS and platform != "tpu"


_unknown: set[str] = set()  # options that this XLA was seen to lack


@functools.cache
def is_known() -> bool:
    """True if this JAX has what `compile_program` calls, as we know it; else it warns."""
    executable = getattr(_pxla, "UnloadedMeshExecutable", None)
    fields = dataclasses.fields(executable) if dataclasses.is_dataclass(executable) else ()
    known = {f.name for f in fields} == set(_FIELDS.split()) and all(
        _has(getattr(module, name, None), given.split()) for name, (module, given) in _CALLED.items()
    )
    if not known:
        warnings.warn(
            f"spmd_compiler does not know how JAX {jax.__version__} compiles programs: they go through jax.jit, which takes longer, "
            "and without the options that suit XLA best",
            stacklevel=2,
        )
    return known


def _has(function: Any, given: Sequence[str]) -> bool:
    return function is not None and {*given} <= inspect.signature(function).parameters.keys()


def compile_program(
    module: ir.Module,
    *,
    name: str,
    devices: Sequence[Any],
    ins: Placed,
    outs: Placed,
    kept: Sequence[int],
    out_tree: Any,
    donated: Sequence[int],
    callbacks: Sequence[Any],
    replicas: bool,
    wished: Sequence[Options],
    options: Options,
) -> Any:
    """A `jax.stages.Compiled` of what each device runs, if it runs `replicas`, else of a program on global arrays.

    `ins`, `outs`: the global arguments and results. It takes the arguments one by one, and returns a tree. `kept`: the positions of
    the arguments that the module takes. `callbacks`: host functions that it calls, by their positions. `options`: of XLA, by
    their names in XLA_FLAGS; `wished`: groups of the same, each where XLA has all of it."""
    backend, device_list = devices[0].client, _jax.DeviceList(tuple(devices))
    counts = (len(devices), 1) if replicas else (1, len(devices))
    array = np.empty(counts, object)
    array.flat = devices

    def compile_with(options: Options) -> Any:
        how = _compiler.get_compile_options(
            *counts, device_assignment=array, backend=backend, env_options_overrides=dict(options)
        )
        how.executable_build_options.use_shardy_partitioner = True
        how.parameter_is_tupled_arguments = _dispatch.should_tuple_args(len(kept), backend.platform)
        return _compiler.compile_or_get_cached(
            backend, module, array.ravel(), how, list(callbacks), device_list
        )

    with _dispatch.log_elapsed_time(
        "Finished XLA compilation of {fun_name} in {elapsed_time:.9f} sec",
        fun_name=name,
        event=_dispatch.BACKEND_COMPILE_EVENT,
    ):
        loaded = _with_wishes(compile_with, wished, options)
        cuts = backend.platform == "cpu" and xla_threads.WHOLE not in wished
        if cuts and xla_threads.overruns(loaded):
            loaded = _with_wishes(compile_with, [*wished, xla_threads.WHOLE], options)
    (avals, shardings), (out_avals, out_shardings) = _sides(ins), _sides(outs)
    in_avals, in_shardings = ([side[i] for i in kept] for side in (avals, shardings))
    in_layouts, out_layouts = _pxla._get_layouts_from_executable(
        loaded, [None] * len(kept), [None] * len(outs), 0, in_avals, out_avals
    )
    executable = _pxla.UnloadedMeshExecutable(
        xla_executable=loaded,
        device_list=device_list,
        backend=backend,
        input_avals=in_avals,
        input_shardings=in_shardings,
        output_avals=out_avals,
        output_shardings=out_shardings,
        committed=True,
        name=name,
        unordered_effects=[],
        ordered_effects=[],
        keepalive=callbacks,
        host_callbacks=callbacks,
        kept_var_idx=set(kept),
        mut=None,
        xla_in_layouts=in_layouts,
        dispatch_in_layouts=_pxla.get_dispatch_layouts(in_layouts, in_shardings, in_avals),
        xla_out_layouts=out_layouts,
        all_args_info=None,
        pgle_profiler=None,
    ).load()
    in_tree = jax.tree.structure((tuple(avals), {}))
    info = _stages.make_args_info(in_tree, avals, donated)
    return _stages.Compiled(executable, [], info, out_tree, no_kwargs=True)


def _with_wishes(compile_with: Callable[[Options], Any], wished: Sequence[Options], options: Options) -> Any:
    """What `compile_with` returns, with `options`, and with those groups that are wished of which XLA has all, if it can compile the
    program so."""
    while wished := [group for group in wished if _unknown.isdisjoint(group)]:
        names = {name for group in wished for name in group}
        try:
            return compile_with(
                {name: value for group in (*wished, options) for name, value in group.items()}
            )
        except jax.errors.JaxRuntimeError as error:
            unknown = {name for name in names if f"No such compile option: '{name}'" in str(error)}
            if not unknown:
                break
            _unknown.update(unknown)
    return compile_with(options)


def _sides(placed: Placed) -> tuple[list[Any], list[Any]]:
    avals = [jax.core.ShapedArray(s.shape, s.dtype, weak_type=bool(s.weak_type)) for s, _ in placed]
    return avals, [sharding for _, sharding in placed]


def cpp_dispatch(
    name: str, miss: Miss, static_argnums: Sequence[int] = (), static_argnames: Sequence[str] = ()
) -> Callable[..., Any]:
    """JAX's C++ dispatcher around `miss`, which it calls for every new signature of arguments.

    `miss` returns the outputs, what the C++ side needs to run the executable by itself next time (None: it will ask again),
    and False.
    """

    def entry(*args: Any, **kwargs: Any) -> Any:
        return miss(*args, **kwargs)[0]

    if not hasattr(jax.jit(entry), "_cache_miss"):  # a JAX whose dispatcher looks different
        return entry
    dispatch = _jax.pjit(
        name,
        entry,
        miss,
        tuple(static_argnums),
        tuple(static_argnames),
        object(),
        _tree_util.dispatch_registry,
        _pxla.cc_shard_arg,
        _jax.PjitFunctionCache(capacity=4096),
    )
    return dispatch if CHECKS_DELETED else functools.partial(_call_unless_deleted, dispatch)


def _call_unless_deleted(dispatch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if any(map(is_deleted, jax.tree.leaves((args, kwargs)))):
        raise RuntimeError("an argument has been deleted")
    return dispatch(*args, **kwargs)


def is_deleted(x: Any) -> bool:
    """Whether an argument is an array that is no more."""
    return _is_of_arrays(type(x)) and x.is_deleted()


@functools.cache  # to ask for each argument takes five times as long
def _is_of_arrays(type: type) -> bool:
    return issubclass(type, jax.Array) and not issubclass(type, jax.core.Tracer)


def compiled_miss(compiled: Any, leaves: Sequence[Any]) -> tuple[Any, Any, bool]:
    """Calls a `jax.stages.Compiled`; returns what `cpp_dispatch` asks for."""
    if not is_known():
        return compiled(*leaves), None, False
    compiled._call = compiled._call or compiled._executable.create_cpp_call(compiled._params)
    miss = getattr(compiled._call, "_cache_miss", None)
    return (compiled(*leaves), None, False) if miss is None else miss(*leaves)


def invalid_value(error: Exception) -> str:
    """What an InvalidValue tells, for people."""
    return f"invalid value ({getattr(error, 'ty', 'nan or inf')})"
