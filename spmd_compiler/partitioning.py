"""JAX's `custom_partitioning` functions within programs: their rule tells where they may be cut, their `partition` callback
what each device then runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax

from . import compat
from .errors import LayoutError
from .fused_attention import fused_attention_rule
from .ir.factor_text import parse_shardy_rule, print_rule
from .ir.graph import Op, Value
from .ir.layout import Layout, even_part, local_type
from .ir.types import TensorType, numpy_dtype
from .layout import Layout as PublicLayout
from .layout import leaf_layout
from .mesh import Mesh
from .passes.rules.custom import PARTITIONED
from .passes.units import Local
from .units import Blocks, key_of


class Partitioning:
    """What `def_partition` was given, for one call."""

    def __init__(
        self,
        name: str,
        partition: Callable[..., Any],
        in_tree: Any,
        out_tree: Any,
        static_args: Sequence[Any],
    ):
        self.name = name
        self._partition = partition
        self._in_tree = in_tree
        self._out_tree = out_tree
        self._static_args = tuple(static_args)

    def localize(self, op: Op, mesh: Mesh, blocks: Blocks) -> Local:
        """Asks the callback what to run where propagation put the values; it may want them elsewhere. If it refuses, everything
        is whole. Raises LayoutError if it refuses that too, or contradicts itself."""
        where, fallback = f"{op.loc}: the partition callback of {self.name}", ""
        try:
            answer = self._ask(op, mesh)
        except Exception as refusal:  # whatever a user's function raises
            fallback = f"{self.name} runs replicated, its partition callback refuses other layouts: {refusal}"
            try:
                answer = self._ask(op, mesh, whole=True)
            except Exception as error:
                raise LayoutError(f"{where} fails: {error}") from error
        _, function, results, operands = answer
        in_layouts = self._layouts(self._in_tree, operands, op.operands, mesh, f"{where}, operand")
        out_layouts = self._layouts(self._out_tree, results, op.results, mesh, f"{where}, result")

        def run(*args: Any) -> list[Any]:
            return jax.tree.leaves(function(*jax.tree.unflatten(self._in_tree, args)))

        body = blocks.of(
            run, [local_type(v.type, x, mesh) for v, x in zip(op.operands, in_layouts, strict=True)]
        )
        made = [v.type for v in body.returns]
        wanted = [local_type(v.type, x, mesh) for v, x in zip(op.results, out_layouts, strict=True)]
        if made != wanted:
            raise LayoutError(
                f"{where} gave a function that makes ({', '.join(map(str, made))}) on a device, but by its shardings "
                f"({', '.join(map(str, wanted))})"
            )
        return Local(body, in_layouts, out_layouts, fallback)

    def _ask(self, op: Op, mesh: Mesh, whole: bool = False) -> Any:
        ins, outs = ([_struct(v, mesh, whole) for v in values] for values in (op.operands, op.results))
        return self._partition(
            *self._static_args,
            mesh.auto,
            jax.tree.unflatten(self._in_tree, ins),
            jax.tree.unflatten(self._out_tree, outs),
        )

    def _layouts(
        self, tree: Any, shardings: Any, values: list[Value], mesh: Mesh, where: str
    ) -> tuple[Layout, ...]:
        leaves = tree.flatten_up_to(shardings)
        return tuple(
            leaf_layout(_for_rank(leaf, v.type.rank), mesh, v.type.rank, f"{where} {i}")
            for i, (leaf, v) in enumerate(zip(leaves, values, strict=True))
        )


def _struct(value: Value, mesh: Mesh, whole: bool) -> jax.ShapeDtypeStruct:
    """A value as callbacks see it: shardings have neither partial sums nor blocks of uneven size."""
    layout = value.layout
    assert isinstance(value.type, TensorType) and layout is not None
    given = layout.drop(a for a in layout.axes if whole or ":" in a).without_partial()
    sharding = PublicLayout.from_ir(even_part(given, value.type, mesh), mesh).auto_sharding()
    spec = (*sharding.spec, *(None,) * (value.type.rank - len(sharding.spec)))  # callbacks look at every dim
    sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(value.type.shape, numpy_dtype(value.type.dtype), sharding=sharding)


def _for_rank(sharding: Any, rank: int) -> Any:
    """Without dims that the value lacks, if nothing shards them: JAX lets callbacks name such, and its own do."""
    if isinstance(sharding, jax.sharding.NamedSharding) and not any(sharding.spec[rank:]):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*sharding.spec[:rank]))
    return sharding


_made: WeakKeyDictionary[Any, Partitioning] = WeakKeyDictionary()


def _marker(
    ins: Any,
    outs: Any,
    *,
    call: Any,
    in_tree: Any,
    out_tree: Any,
    partition: Any,
    sharding_rule: Any,
    static_args: Any,
    **_: Any,
) -> compat.Marker | None:
    if partition is None:
        return None
    mesh = compat.program_mesh().auto
    found = _made.get(call)
    if found is None:
        name = compat.function_name(call)
        found = _made[call] = Partitioning(name, partition, in_tree, out_tree, static_args)
    rule = fused_attention_rule(found.name, static_args, ins, outs)
    if rule is None:
        text = compat.partitioning_rule(sharding_rule, static_args, mesh, ins, outs)
        rule = None if text is None else print_rule(parse_shardy_rule(text))
    return compat.Marker(PARTITIONED, key_of(found), rule, found)


compat.lower_inside(compat.custom_partitioning_p, _marker)


def callback_of(key: str) -> Partitioning | None:
    """For a call that JAX lowered itself, in this process; None if its program is gone."""
    info = compat.partitioning_callback(key)
    if info is None or info.partition is None:
        return None
    return Partitioning("custom_partitioning", info.partition, info.in_tree, info.out_tree, info.static_args)
