"""A partitioned program: its stages, and how it runs inside `jax.jit`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding
from jaxlib.mlir import ir

from . import compat, compat_executables
from .errors import MeshError, UnsupportedError
from .global_form import global_form
from .ir.exporter import export_module
from .ir.graph import Block, Module
from .ir.layout import Layout, local_type
from .ir.memory_kinds import lies_on_host
from .ir.types import TensorType
from .layout import Layout as PublicLayout
from .memories import placed, type_of
from .mesh import Mesh
from .passes.estimate import read_in
from .passes.rules.custom import PARTITIONED, UNIT
from .refinement import Refinement
from .xla_options import xla_options

_WIDE = frozenset({"int64", "uint64", "float64", "complex128"})


@dataclass(eq=False)
class Partitioned:
    """`stages`: the IR after each named pass; the last is per device. `ins`, `outs`: the global arguments and results,
    with their layouts (which divide them evenly). `callbacks`: host functions that the program calls."""

    name: str
    mesh: Mesh
    stages: dict[str, Module]
    ins: Sequence[jax.ShapeDtypeStruct]
    outs: Sequence[jax.ShapeDtypeStruct]
    in_layouts: tuple[Layout, ...]
    out_layouts: tuple[Layout, ...]
    callbacks: tuple[Any, ...] = ()

    @property
    def module(self) -> Module:
        """What each device runs."""
        return next(reversed(self.stages.values()))

    @cached_property
    def in_shardings(self) -> tuple[NamedSharding, ...]:
        return self._shardings(self.in_layouts, self.module.main.arg_attrs)

    @cached_property
    def out_shardings(self) -> tuple[NamedSharding, ...]:
        return self._shardings(self.out_layouts, self.module.main.result_attrs)

    def _shardings(
        self, layouts: Sequence[Layout], attrs: Sequence[dict[str, Any]]
    ) -> tuple[NamedSharding, ...]:
        shardings = (PublicLayout.from_ir(x, self.mesh).to_jax() for x in layouts)
        return tuple(map(placed, shardings, attrs))

    def precision(self) -> AbstractContextManager[Any]:
        """The context to compile and run in: programs from elsewhere have 64-bit types though JAX is set to 32."""
        return jax.enable_x64(True) if self.is_wide else nullcontext()

    @cached_property
    def is_wide(self) -> bool:
        """Whether arguments or results have 64-bit types."""
        return any(str(struct.dtype) in _WIDE for struct in (*self.ins, *self.outs))

    def run(self, *args: Any) -> list[Any]:
        """The program on (traced) global arrays: a `shard_map` around the module of a device."""
        self._check_runnable()
        refinement = Refinement(self.mesh, [*self.in_layouts, *self.out_layouts])
        # XLA fails on a region whose arguments all lack elements; those need no way in
        full = [i for i, x in enumerate(args) if x.size]

        def local(*shards: Any) -> list[Any]:
            given = dict(zip(full, shards, strict=True))
            everything = [
                given[i] if i in given else jax.lax.empty(x.shape, x.dtype) for i, x in enumerate(args)
            ]
            return local_p.bind(*everything, partitioned=self)

        mapped = jax.shard_map(
            local,
            mesh=refinement.mesh.auto,
            in_specs=tuple(refinement.spec(self.in_layouts[i]) for i in full),
            out_specs=[refinement.spec(x) for x in self.out_layouts],
            check_vma=False,
        )
        return mapped(*(args[i] for i in full))

    def compile(self, out_tree: Any, donated: Sequence[int], options: Mapping[str, Any] | None = None) -> Any:
        """A `jax.stages.Compiled`, which takes the flat arguments, and returns results of structure `out_tree`. options: for
        XLA."""
        devices = self._check_runnable()
        if not compat_executables.is_known():
            return self._jitted(out_tree, donated).lower(*self.ins).compile(options and dict(options))
        module, kept = _with_used_args(_with_donations(self.module, donated), donated)
        replicas = compat_executables.runs_replicas(self.mesh.platform)
        if not replicas and len(devices) > 1:
            module = global_form(module, [self.in_layouts[i] for i in kept], self.out_layouts)
        return compat_executables.compile_program(
            self.exported(module, devices="replicas" if replicas else "partitions"),
            name=self.name,
            devices=devices,
            ins=list(zip(self.ins, self.in_shardings, strict=True)),
            outs=list(zip(self.outs, self.out_shardings, strict=True)),
            kept=kept,
            out_tree=out_tree,
            donated=donated,
            callbacks=self.callbacks,
            replicas=replicas,
            wished=xla_options(self.module, self.mesh.platform, devices),
            options=options or {},
        )

    def _jitted(self, out_tree: Any, donated: Sequence[int]) -> Any:
        def run(*leaves: Any) -> Any:
            return jax.tree.unflatten(out_tree, self.run(*leaves))

        run.__name__ = self.name
        return jax.jit(
            run,
            in_shardings=self.in_shardings,
            out_shardings=jax.tree.unflatten(out_tree, self.out_shardings),
            donate_argnums=tuple(donated),
        )

    def exported(self, module: Module, **how: Any) -> ir.Module:
        """StableHLO for XLA. Dense groups: with several meshes in one module XLA looks up mesh axes in the wrong one."""
        return export_module(module, groups="dense", platform=self.mesh.platform, **how)

    def _check_runnable(self) -> tuple[Any, ...]:
        """The devices. Raises MeshError if there are none, and UnsupportedError for a call of a function that another
        process knows, which XLA would look for here."""
        if self.mesh.devices is None:
            raise MeshError(
                f"{self.name}: {self.mesh!r} is abstract; it compiles with .lower(), but has no devices to run on"
            )
        for op in self.module.walk():
            if op.name == "custom_call" and op.attrs.get("call_target_name") in (PARTITIONED, UNIT):
                raise UnsupportedError(
                    f"{op.loc}: this program calls a Python function that partitions itself, which only the process "
                    "that made the program has; compile it there"
                )
        return self.mesh.devices

    def local_avals(self) -> list[Any]:
        """What `module` returns, on one device."""
        avals: list[Any] = []
        attrs = self.module.main.result_attrs
        for struct, layout, each in zip(self.outs, self.out_layouts, attrs, strict=True):
            shape = local_type(TensorType(tuple(struct.shape), "i8"), layout, self.mesh).shape
            avals.append(type_of(struct.update(shape=shape), lies_on_host(each)))
        return avals


def _with_donations(module: Module, donated: Sequence[int]) -> Module:
    """The module with each donated argument in the place of a result of its type and memory, as `jax.jit` does it. Warns of those
    for which there is none."""
    if not donated:
        return module
    module = module.with_body(module.main.body)
    main = module.main
    main.arg_attrs = [dict(attrs) for attrs in main.arg_attrs]
    returned = zip(main.body.returns, map(lies_on_host, main.result_attrs), strict=True)
    left, unused = list(enumerate((v.type, there) for v, there in returned)), list[str]()
    for i in donated:
        kind = main.body.args[i].type, lies_on_host(main.arg_attrs[i])
        found = next((x for x in left if x[1] == kind), None)
        if found is None:
            unused.append(str(kind[0]))
        else:
            left.remove(found)
            main.arg_attrs[i]["tf.aliasing_output"] = found[0]
    if unused:
        warnings.warn(f"Some donated buffers were not usable: {', '.join(unused)}", stacklevel=2)
    return module


def _with_used_args(module: Module, donated: Sequence[int]) -> tuple[Module, list[int]]:
    """The module without arguments that nothing reads, which need not be on the devices, and the positions of the others. Donated
    ones stay: a result may be in their place."""
    main = module.main
    body, read = main.body, {*read_in(main.body)}
    kept = [i for i, v in enumerate(body.args) if v in read or i in donated]
    if len(kept) == len(body.args):
        return module, kept
    module = module.with_body(Block([body.args[i] for i in kept], body.ops, body.returns))
    module.main.arg_attrs = [main.arg_attrs[i] for i in kept]
    return module, kept


local_p = compat.primitive("spmd_local", lambda *_, partitioned: partitioned.local_avals())
compat.register_module_lowering(
    local_p,
    lambda context, partitioned: partitioned.exported(partitioned.module, context=context),
    lambda partitioned: partitioned.callbacks,
)
