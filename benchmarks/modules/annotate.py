"""Writers that annotate what they write, at random: arguments, results, ops, and constraints between ops."""

from __future__ import annotations

from random import Random

from .programs import Tensor
from .shardings import Meshes, draw_hlo, draw_meshes, draw_named, draw_shardy, tiled
from .writer import Writer


class AnnotatedWriter(Writer):
    """`share`: how often a value is annotated. `even`: arguments and results divide into their shards."""

    def __init__(self, rng: Random, share: float = 0.5, even: bool = False):
        super().__init__()
        self.rng = rng
        self.meshes: Meshes = draw_meshes(rng)
        self.share = share
        self.even = even

    def some(self, share: float = 1.0) -> bool:
        return self.rng.random() < self.share * share

    def one(self, kind: str, name: str, type: Tensor, lines: list[str]) -> str:
        """Appends a line that makes a value of `name`, which stands at the $ of `kind`, of the same type."""
        out = self.fresh()
        lines.append(f"{out} = {kind.replace('$', name)} : {type}")
        return out

    def custom_call(
        self, target: str, name: str, types: tuple[Tensor, Tensor], attrs: str, lines: list[str]
    ) -> str:
        out = self.fresh()
        lines.append(
            f"{out} = stablehlo.custom_call @{target}({name}) {{{attrs}}} : ({types[0]}) -> {types[1]}"
        )
        return out


class ShardyWriter(AnnotatedWriter):
    """Shardy's attributes and ops."""

    def top(self) -> list[str]:
        return [f"sdy.mesh @{name} = <{text}>" for name, text in self.meshes.declared.items()]

    def sharding(self, type: Tensor, even: bool = False, partial: bool = True) -> str:
        return f"<{draw_shardy(self.rng, type.shape, self.meshes, even, partial)}>"

    def argument(self, type: Tensor, public: bool) -> str:
        return f"sdy.sharding = #sdy.sharding{self.sharding(type, self.even)}" if self.some() else ""

    def result(self, type: Tensor, public: bool) -> str:
        return self.argument(type, public)

    def attributes(self, type: Tensor) -> str:
        return f"sdy.sharding = #sdy.sharding_per_value<[{self.sharding(type)}]>" if self.some(0.6) else ""

    def after(self, name: str, type: Tensor, lines: list[str]) -> str:
        while self.some(0.6):
            kind = self.rng.choice((self._constraint, self._constraint, self._barrier, self._group, self._named,
                                    self._manual, self._collectives))  # fmt: skip
            name = kind(name, type, lines)
        return name

    def _constraint(self, name: str, type: Tensor, lines: list[str]) -> str:
        op = self.rng.choice(("sdy.sharding_constraint", "sdy.reshard"))
        return self.one(f"{op} $ {self.sharding(type)}", name, type, lines)

    def _barrier(self, name: str, type: Tensor, lines: list[str]) -> str:
        direction = self.rng.choice(("NONE", "FORWARD", "BACKWARD"))
        return self.one(f"sdy.propagation_barrier $ allowed_direction={direction}", name, type, lines)

    def _group(self, name: str, type: Tensor, lines: list[str]) -> str:
        lines.append(f"sdy.sharding_group {name} group_id={len(type.shape)}{sum(type.shape)} : {type}")
        return name

    def _named(self, name: str, type: Tensor, lines: list[str]) -> str:
        out, inner, result = self.fresh(), self.fresh(), self.fresh()
        lines.append(
            f'{out} = sdy.named_computation<"part">({name}) in_shardings=[{self.sharding(type)}] '
            f"out_shardings=[{self.sharding(type)}] ({inner}: {type}) {{ {result} = stablehlo.negate {inner} : {type} "
            f"sdy.return {result} : {type} }} : ({type}) -> {type}"
        )
        return self.one("stablehlo.negate $", out, type, lines)

    def _manual(self, name: str, type: Tensor, lines: list[str]) -> str:
        """Negated twice, once on every device's own block."""
        axes = self.meshes.axes["mesh"]
        dims: list[str] = ["{}"] * len(type.shape)
        local = list(type.shape)
        for axis, size in axes:
            fits = [d for d, n in enumerate(local) if n and n % size == 0]
            if fits and self.rng.random() < 0.7:
                at = self.rng.choice(fits)
                dims[at] = f'{dims[at][:-1]}{", " if len(dims[at]) > 2 else ""}"{axis}"}}'
                local[at] //= size
        part = Tensor(tuple(local), type.dtype)
        sharding = f"<@mesh, [{', '.join(dims)}]>"
        names = ", ".join(f'"{n}"' for n, _ in axes)
        out, inner, result = self.fresh(), self.fresh(), self.fresh()
        lines.append(
            f"{out} = sdy.manual_computation({name}) in_shardings=[{sharding}] out_shardings=[{sharding}] "
            f"manual_axes={{{names}}} ({inner}: {part}) {{ {result} = stablehlo.negate {inner} : {part} "
            f"sdy.return {result} : {part} }} : ({type}) -> {type}"
        )
        return self.one("stablehlo.negate $", out, type, lines)

    def _collectives(self, name: str, type: Tensor, lines: list[str]) -> str:
        """Shardy's own collectives from one sharding to the next, and back."""
        axis, size = self.meshes.axes["mesh"][0]
        dims = [d for d, n in enumerate(type.shape) if n % size == 0]
        if not dims:
            return name
        at = self.rng.choice(dims)

        def over(dim: int | None) -> str:
            return (
                "[" + ", ".join(f'{{"{axis}"}}' if d == dim else "{}" for d in range(len(type.shape))) + "]"
            )

        name = self.one(f"sdy.reshard $ <@mesh, {over(None)}>", name, type, lines)
        name = self.one(f"sdy.all_slice {over(at)} $ out_sharding=<@mesh, {over(at)}>", name, type, lines)
        if len(dims) > 1:
            to = self.rng.choice([d for d in dims if d != at])
            kind = f'sdy.all_to_all [{{"{axis}"}}: {at}->{to}] $ out_sharding=<@mesh, {over(to)}>'
            name, at = self.one(kind, name, type, lines), to
        gathered = f"out_sharding=<@mesh, {over(None)}>"
        name = self.one(f"sdy.all_gather {over(at)} $ {gathered}", name, type, lines)
        partial = f'out_sharding=<@mesh, {over(None)}, unreduced={{"{axis}"}}>'
        name = self.one(f'sdy.replicated_to_unreduced {{"{axis}"}} $ {partial}', name, type, lines)
        return self.one(f'sdy.all_reduce {{"{axis}"}} $ {gathered}', name, type, lines)


class RoundTripWriter(ShardyWriter):
    """Shardy's annotations as strings, as they are while a module is HLO."""

    def top(self) -> list[str]:
        return []

    def module_attributes(self) -> str:
        meshes = ", ".join(f"{n} = #sdy.mesh<{text}>" for n, text in self.meshes.declared.items())
        return self._frontend("meshes", "{" + meshes + "}")

    def _frontend(self, key: str, text: str) -> str:
        quoted = text.replace('"', r"\22")
        return f'mhlo.frontend_attributes = {{xla.sdy.{key} = "{quoted}"}}'

    def argument(self, type: Tensor, public: bool) -> str:
        if not self.some():
            return ""
        return self._frontend("sharding", f"#sdy.sharding{self.sharding(type, self.even)}")

    def result(self, type: Tensor, public: bool) -> str:
        return ""

    def _per_value(self, sharding: str) -> str:
        return self._frontend("sharding", f"#sdy.sharding_per_value<[{sharding}]>")

    def attributes(self, type: Tensor) -> str:
        return self._per_value(self.sharding(type)) if self.some(0.6) else ""

    def before_return(self, name: str, type: Tensor, lines: list[str]) -> str:
        if not self.some():
            return name
        attrs = self._per_value(self.sharding(type, self.even))
        return self.custom_call("xla.sdy.FuncResultSharding", name, (type, type), attrs, lines)

    def after(self, name: str, type: Tensor, lines: list[str]) -> str:
        if self.some(0.6):
            attrs = self._per_value(self.sharding(type))
            name = self.custom_call("Sharding", name, (type, type), attrs, lines)
        if self.some(0.3):
            attrs = self._frontend("allowed_direction", "1 : i32")
            name = self.custom_call("xla.sdy.PropagationBarrier", name, (type, type), attrs, lines)
        if self.some(0.2):
            attrs = self._frontend("sharding_group_id", "3 : i64")
            lines.append(
                f"stablehlo.custom_call @xla.sdy.ShardingGroup({name}) {{has_side_effect = true, {attrs}}} : "
                f"({type}) -> ()"
            )
        return name


class HloWriter(AnnotatedWriter):
    """`mhlo.sharding` strings of tiles, and manual regions between custom calls."""

    named = False

    def module_attributes(self) -> str:
        return f"mhlo.num_partitions = {self.meshes.devices} : i32"

    def sharding(self, type: Tensor, even: bool = False) -> str:
        if self.named:
            text = draw_named(self.rng, type.shape, self.meshes, even)
        else:
            text = draw_hlo(self.rng, type.shape, self.meshes.devices, even)
        return f'mhlo.sharding = "{text}"'

    def argument(self, type: Tensor, public: bool) -> str:
        return self.sharding(type, self.even) if self.some() else ""

    def result(self, type: Tensor, public: bool) -> str:
        return self.argument(type, public)

    def attributes(self, type: Tensor) -> str:
        return self.sharding(type) if self.some(0.6) else ""

    def after(self, name: str, type: Tensor, lines: list[str]) -> str:
        if self.some(0.6):
            open = [str(d) for d in range(len(type.shape)) if self.rng.random() < 0.2]
            attrs = self.sharding(type)
            if open:
                attrs += f', backend_config = "unspecified_dims=[{",".join(open)}]"'
            name = self.custom_call("Sharding", name, (type, type), attrs, lines)
        return self._manual(name, type, lines) if not self.named and self.some(0.15) else name

    def _manual(self, name: str, type: Tensor, lines: list[str]) -> str:
        text = tiled(self.rng, type.shape, self.meshes.devices, even=True, regular=True)
        # Over 6 devices two regions may need axes of 2 by 3 and of 3 by 2, which no mesh has both.
        if "devices" not in text or self.meshes.devices == 6:
            return name
        counts = [int(n) for n in text[text.index("[") + 1 : text.index("]")].split(",")]
        part = Tensor(tuple(n // k for n, k in zip(type.shape, counts, strict=False)), type.dtype)
        whole, manual = f'mhlo.sharding = "{text}"', 'mhlo.sharding = "{manual}"'
        name = self.custom_call("Sharding", name, (type, type), whole, lines)
        name = self.custom_call("SPMDFullToShardShape", name, (type, part), manual, lines)
        name = self.one("stablehlo.negate $", name, part, lines)
        name = self.custom_call("Sharding", name, (part, part), manual, lines)
        name = self.custom_call("SPMDShardToFullShape", name, (part, type), whole, lines)
        return self.one("stablehlo.negate $", name, type, lines)


class NamedHloWriter(HloWriter):
    """`mhlo.sharding` strings over named axes."""

    named = True


STYLES = {"shardy": ShardyWriter, "round trip": RoundTripWriter, "hlo": HloWriter, "named": NamedHloWriter}
