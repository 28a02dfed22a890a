"""The arguments of a call: which are static, which are donated, their names, and how they flatten."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.tree_util import keystr

from .errors import ArgumentError
from .prefix import broadcast_prefix

Slot = int | str  # a positional argument, or a keyword argument


@dataclass(frozen=True)
class Call:
    """One call's arguments. `leaves`: the dynamic ones, flattened in JAX's order: positional, then keywords by name.
    `statics`: the static ones, by slot."""

    signature: Signature
    n_args: int
    slots: tuple[Slot, ...]
    leaves: list[Any]
    tree: Any
    statics: tuple[tuple[Slot, Any], ...]
    values: tuple[Any, ...]

    def rebuild(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's args and kwargs with other dynamic leaves."""
        values = dict(zip(self.slots, jax.tree.unflatten(self.tree, leaves), strict=True)) | dict(
            self.statics
        )
        args = tuple(values[i] for i in range(self.n_args))
        return args, {k: v for k, v in values.items() if isinstance(k, str)}

    def arrange(self, leaves: Sequence[Any]) -> Any:
        """Something per leaf, in the shape of the arguments: a tuple, or (tuple, dict) if there are keywords."""
        args, named = self.args_and_kwargs(leaves)
        return (args, named) if named else args

    def args_and_kwargs(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Something per leaf, in the shape of the arguments; static ones are left out."""
        values = jax.tree.unflatten(self.tree, leaves)
        named = {k: v for k, v in zip(self.slots, values, strict=True) if isinstance(k, str)}
        return tuple(v for k, v in zip(self.slots, values, strict=True) if isinstance(k, int)), named

    @cached_property
    def paths(self) -> list[str]:
        """The name of each leaf, `params['w1']`."""
        found = jax.tree_util.tree_flatten_with_path(self.values)[0]
        return [self.signature.slot_name(self.slots[p[0].idx]) + keystr(p[1:]) for p, _ in found]

    @cached_property
    def leaf_slots(self) -> list[Slot]:
        counts = [jax.tree.structure(v).num_leaves for v in self.values]
        return [slot for slot, n in zip(self.slots, counts, strict=True) for _ in range(n)]

    @property
    def donated(self) -> tuple[int, ...]:
        """Positions of the donated leaves."""
        return tuple(i for i, slot in enumerate(self.leaf_slots) if self.signature.is_donated(slot))


class Signature:
    """`static_argnums` … are those of `jax.jit`: numbers and names of one parameter mean the same. Raises ArgumentError for
    a parameter that doesn't exist, or is both static and donated."""

    def __init__(
        self,
        fun: Callable[..., Any],
        static_argnums: Any,
        static_argnames: Any,
        donate_argnums: Any,
        donate_argnames: Any,
    ):
        self.fun_name = getattr(fun, "__name__", "spmd_function")
        self.names, self._open_args, self._open_kwargs, self._keywords = _parameters(fun)
        self.static_nums, self.static_names = self._resolve("static", static_argnums, static_argnames)
        self.donated_nums, self.donated_names = self._resolve("donate", donate_argnums, donate_argnames)
        both = self.static_nums & self.donated_nums | self.static_names & self.donated_names
        for slot in both:
            raise ArgumentError(
                f"{self.fun_name}: argument {self.slot_name(slot)!r} is static and can't be donated"
            )

    def _resolve(self, what: str, nums: Any, names: Any) -> tuple[frozenset[int], frozenset[str]]:
        nums = tuple(nums or ()) if nums is None or isinstance(nums, Iterable) else (nums,)
        given = names or ()
        names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        if not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"{what}_argnames={names!r}: give a name, or several")
        count = len(self.names)
        out: set[int] = set()
        for i in nums:
            if not isinstance(i, int) or not (-count <= i < count or self._open_args):
                raise ArgumentError(
                    f"{what}_argnums={i!r}: {self.fun_name} has {count} positional parameters"
                )
            out.add(i % count if i < 0 else i)
        for name in names:
            if name in self.names:
                out.add(self.names.index(name))
            elif name not in self._keywords and not self._open_kwargs:
                raise ArgumentError(
                    f"{what}_argnames={name!r}: {self.fun_name} has no parameter of that name"
                )
        return frozenset(out), frozenset(names) | {self.names[i] for i in out if i < count}

    def is_static(self, slot: Slot) -> bool:
        return slot in (self.static_nums if isinstance(slot, int) else self.static_names)

    def is_donated(self, slot: Slot) -> bool:
        return slot in (self.donated_nums if isinstance(slot, int) else self.donated_names)

    def slot_name(self, slot: Slot) -> str:
        if isinstance(slot, str):
            return slot
        return self.names[slot] if slot < len(self.names) else f"args[{slot}]"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call's arguments, sorted into static and others. Raises ArgumentError for a static one without a hash."""
        slots: list[tuple[Slot, Any]] = [*enumerate(args), *((k, kwargs[k]) for k in sorted(kwargs))]
        dynamic = [(k, v) for k, v in slots if not self.is_static(k)]
        statics = tuple((k, v) for k, v in slots if self.is_static(k))
        for slot, value in statics:
            try:
                hash(value)
            except TypeError:
                raise ArgumentError(
                    f"{self.fun_name}: static argument {self.slot_name(slot)!r} is a {type(value).__name__}, which has no "
                    "hash; programs are kept by the values of their static arguments, so give a tuple or a frozen dataclass"
                ) from None
        values = tuple(v for _, v in dynamic)
        leaves, tree = jax.tree.flatten(values)
        return Call(self, len(args), tuple(k for k, _ in dynamic), leaves, tree, statics, values)

    def leaf_specs(self, layouts: Any, call: Call, is_leaf: Callable[[Any], bool]) -> list[Any]:
        """The entry of `in_layouts` for each leaf of a call. Raises ArgumentError for a structure that doesn't fit.

        `layouts` is one leaf for all arguments, a tuple (by position, static arguments left out or None), or a
        dict by parameter name. An argument that it doesn't reach has None.
        """
        if is_leaf(layouts):
            return [layouts] * len(call.leaves)
        given = self._by_slot(layouts, call)
        out: list[Any] = []
        for slot, value in zip(call.slots, call.values, strict=True):
            prefix, where = given.get(self._canonical(slot), (None, ""))
            out += broadcast_prefix(prefix, value, f"{where} (argument {self.slot_name(slot)!r})", is_leaf)
        return out

    def _canonical(self, slot: Slot) -> Slot:
        return self.names.index(slot) if isinstance(slot, str) and slot in self.names else slot

    def _by_slot(self, layouts: Any, call: Call) -> dict[Slot, tuple[Any, str]]:
        if isinstance(layouts, dict):
            known = {*self.names, *self._keywords, *(s for s in call.slots if isinstance(s, str))}
            for name in layouts:
                if name not in known:
                    raise ArgumentError(
                        f"in_layouts[{name!r}]: {self.fun_name} has no parameter of that name"
                    )
            return {self._canonical(k): (v, f"in_layouts[{k!r}]") for k, v in layouts.items()}
        if not isinstance(layouts, (tuple, list)):
            raise ArgumentError(
                f"in_layouts is {layouts!r}: give a layout, a tuple of them, or a dict by parameter name"
            )
        n_params = max(call.n_args, len(self.names))
        positions = [*range(n_params)]
        dynamic = [i for i in positions if i not in self.static_nums]
        if len(layouts) == len(dynamic) != len(positions):
            positions = dynamic
        if len(layouts) > len(positions) or len(layouts) < sum(i < call.n_args for i in positions):
            raise ArgumentError(
                f"in_layouts has {len(layouts)} entries, but {self.fun_name} is called with {call.n_args} positional "
                "arguments; give one entry for each (None: as it lies)"
            )
        return {p: (layouts[i], f"in_layouts[{i}]") for i, p in enumerate(positions[: len(layouts)])}

    def check_static_layouts(self, layouts: Any) -> None:
        """Raises ArgumentError where a static argument is given a layout."""
        if isinstance(layouts, dict):
            pairs = list(layouts.items())
        elif isinstance(layouts, (tuple, list)) and len(layouts) >= len(self.names):
            pairs = list(enumerate(layouts))
        else:
            return
        for slot, layout in pairs:
            if layout is not None and self.is_static(slot):
                raise ArgumentError(
                    f"in_layouts[{slot!r}]: argument {self.slot_name(slot)!r} is static, it has no layout; give None"
                )


def _parameters(fun: Callable[..., Any]) -> tuple[list[str], bool, bool, list[str]]:
    """Positional parameters, whether there are *args and **kwargs, and keyword-only parameters."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return [], True, True, []
    kinds = inspect.Parameter
    names = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    return (
        names,
        any(p.kind is kinds.VAR_POSITIONAL for p in parameters),
        any(p.kind is kinds.VAR_KEYWORD for p in parameters),
        [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY],
    )
