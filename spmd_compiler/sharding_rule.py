"""`sharding_rule`: a function that every device runs whole, on its blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import update_wrapper
from typing import Any, TypeVar

import jax
import numpy as np

from . import compat
from .errors import ArgumentError
from .target_rules import rule_text
from .units import Unit, bind, exactly, struct_key

F = TypeVar("F", bound=Callable[..., Any])


def sharding_rule(
    rule: str,
    *,
    reduction: str | Mapping[str, str] | None = None,
    reduction_factors: Sequence[str] = (),
    need_replication_factors: Sequence[str] = (),
    permutation_factors: Sequence[str] = (),
    **factor_sizes: int,
) -> Callable[[F], F]:
    """Decorates a function that the compiler shall not look into: a kernel, an `ffi_call`, an algorithm that is best
    left together. In an `spmd_jit` program each device runs it as a whole on the blocks that the rule allows.

        @spmd.sharding_rule("b i, i o -> b o", reduction="sum")
        def matmul(x, w): ...

    The rule is written as for `register_sharding_rule`. Its operands are the arrays among the arguments, in the order
    of `jax.tree.leaves((args, kwargs))`; all else, such as a Python number or a string, is static. Its results are
    the leaves of what the function returns.

    The function can be differentiated and batched, its derivatives run on blocks by rules that follow from its own;
    with a `jax.custom_vjp` around it those of its forward and backward functions count. Outside of programs it is
    the plain function.

    Raises ParseError and LayoutError for a malformed rule, where the function is defined. Where it is compiled:
    LayoutError for a rule that its arguments or results don't fit, for a function that fails on blocks, and for one that makes
    other blocks than the rule says.
    """
    text = rule_text(
        rule, reduction, reduction_factors, need_replication_factors, permutation_factors, factor_sizes
    )

    def decorate(function: F) -> F:
        wrapped: Any = _Ruled(function, text)
        return wrapped

    return decorate


class _Ruled:
    """The function in its program's form: units by what is static in a call."""

    def __init__(self, function: Callable[..., Any], rule: str):
        self._function = function
        self._rule = rule
        self._units: dict[Any, _Call] = {}
        update_wrapper(self, function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Ruled(self._function.__get__(instance, owner), self._rule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not compat.is_tracing():
            return self._function(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [x for x in leaves if _is_array(x)]
        if any(compat.is_extended(x.dtype) for x in arrays):
            raise ArgumentError(
                f"{self.__name__}: a function with a sharding rule takes random keys as jax.random.key_data(key)"
            )
        statics = tuple(None if _is_array(x) else exactly(x) for x in leaves)
        call = _Call(self._function, tree, statics)
        with suppress(TypeError):  # not hashable: two such calls are two units
            call = self._units.setdefault((tree, statics), call)
        unit = call.unit(self._rule)
        outs = bind(unit, arrays, unit.outs(arrays))
        return jax.tree.unflatten(call.out_trees[struct_key(arrays)], outs)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


class _Call:
    """The function with all static arguments in place; `out_trees`: the structure of its result, by its arguments'
    shapes."""

    def __init__(self, function: Callable[..., Any], tree: Any, statics: tuple[tuple[Any, ...] | None, ...]):
        self._function = function
        self._tree = tree
        self._statics = statics
        self._unit: Unit | None = None
        self.out_trees: dict[Any, Any] = {}

    def unit(self, rule: str) -> Unit:
        if self._unit is None:
            self._unit = Unit(getattr(self._function, "__name__", "function"), lambda results: self.run, rule)
        return self._unit

    def run(self, *arrays: Any) -> list[Any]:
        given = iter(arrays)
        leaves = [next(given) if s is None else s[0] for s in self._statics]
        args, kwargs = jax.tree.unflatten(self._tree, leaves)
        outs, self.out_trees[struct_key(arrays)] = jax.tree.flatten(self._function(*args, **kwargs))
        return [jax.numpy.asarray(x) for x in outs]
