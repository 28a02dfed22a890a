"""optimize: cleans up the per-device program. Equal collectives and local ops are merged, unused ones dropped, and small
collectives that can run together are combined, large ones unless the hardware model says that apart they hide better, and
those of one value along several dims are joined; matrix products that wait for large ones become rings. Loops end on each
device by itself where they may, and put together slices of what is gathered; arguments are exchanged before they are computed
with, permutes of permutes become one, what several have in common is sent once, and what is much is sliced before it is
gathered; what the program repeats of its own collectives runs once; starts of slices that XLA would misread are clamped,
windows cropped, reductions that it lacks written otherwise, collectives written as the TPU's compiler keeps them, and ops ordered
so that they run while collectives do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir.graph import Module
from ..ir.mesh import Mesh
from .hardware import Hardware
from .optimizations.bitwise_reductions import expand_bitwise
from .optimizations.blocks_in_loops import put_together_in_loops
from .optimizations.carry_order import order_carries
from .optimizations.clamp_starts import clamp_starts
from .optimizations.combine import bucket_sizes, combine_collectives
from .optimizations.compose_permutes import compose_permutes
from .optimizations.crop_windows import crop_windows
from .optimizations.exchange_first import exchange_first
from .optimizations.fit_memory import fit_memory
from .optimizations.independent_loops import free_loops
from .optimizations.join_dims import BOTH, GATHERS, HUGE, LARGE, REDUCES, join_dims
from .optimizations.late_slices import slice_late
from .optimizations.merge_dims import merge_dims
from .optimizations.packing import COPIED
from .optimizations.rectifiers import rectify_in_calls
from .optimizations.residuals import keep_less
from .optimizations.rings import make_rings
from .optimizations.row_major_ffts import keep_row_major
from .optimizations.schedule import order_for_overlap
from .optimizations.share_halos import share_halos
from .optimizations.slice_first import slice_first
from .optimizations.slice_operands import slice_operands
from .optimizations.split_reductions import split_reductions
from .optimizations.split_sums import split_sums
from .optimizations.tpu_forms import rewrite_for_tpu
from .optimizations.uniform_sums import drop_uniform_sums
from .optimizations.unit_dims import drop_unit_dims
from .prepare.barriers import join_barriers
from .simplify import Simplify
from .timeline import Timeline
from .written_collectives import has_written, hoist_written

Rewrite = tuple[str, Callable[[Module], Module]]  # by its name


@dataclass(frozen=True)
class Optimize:
    """rings: True wherever they are possible, False nowhere, None where they save time on `hardware`. platform: what XLA compiles
    for, as `Mesh.platform`: for TPUs collectives are written as it keeps them, for CPUs products as it runs them fast. memory:
    bytes that a device has; where live values take more, they are gathered later, or again. variadic: XLA keeps all-gathers of
    several operands; else what they gather is packed into one buffer."""

    hardware: Hardware | None = None
    rings: bool | None = None
    platform: str | None = None
    memory: float | None = None
    variadic: bool = True
    name: ClassVar[str] = "optimize"

    def __call__(self, module: Module) -> Module:
        made = module
        for _, made in self.steps(module):  # noqa: B007
            pass
        return made

    def steps(self, module: Module) -> Iterator[tuple[str, Module]]:
        """The module after each rewrite, with the rewrite's name; each changes in place what the one before made."""
        sizes = sorted(bucket_sizes(self.hardware, self.memory))
        for name, rewrite in self.apart(module.mesh, has_written(module.main.body), sizes[0]):
            module = rewrite(module)
            yield name, module
        made: list[Module] = []
        for size in sizes:
            each = module if len(sizes) == 1 else Simplify()(module)
            for name, rewrite in self.together(module.mesh, size):
                each = rewrite(each)
                yield name, each
            made.append(each)
        if len(made) > 1:
            yield "the size of what goes together", min(made, key=self._seconds)

    def apart(self, mesh: Mesh, written: bool, bucket: int) -> list[Rewrite]:
        """What is done before collectives are combined. written: the program has collectives of its own; bucket: bytes that one
        collective may hold."""
        rewrites = [("simplify", Simplify())]
        if written:
            rewrites += [
                _in_place(hoist_written),
                _cleaned(drop_uniform_sums, mesh, always=True),
                _in_place(join_dims, mesh, REDUCES),
            ]
        rewrites += [
            _cleaned(keep_less),
            _cleaned(slice_operands),
            _cleaned(exchange_first, mesh),
            _in_place(compose_permutes, mesh),
            _in_place(share_halos, mesh),
            _in_place(join_barriers),
            _in_place(slice_first, mesh, bucket),
        ]
        if self.memory is not None:
            rewrites.append(_in_place(fit_memory, mesh, self.memory))
        if self.platform != "tpu":
            rewrites.append(_in_place(put_together_in_loops, mesh))
        return [*rewrites, _in_place(free_loops)]

    def together(self, mesh: Mesh, bucket: int) -> list[Rewrite]:
        """Collectives are combined to `bucket` bytes at most, and what follows from that."""
        # of reduce-scatters over all axes XLA for TPUs makes all-reduces
        joined = GATHERS if self.platform == "tpu" else BOTH
        large = HUGE if self.platform in ("gpu", "tpu") else LARGE
        rewrites = [_in_place(split_reductions, mesh, bucket)]
        if not self.rings and self.hardware is None:
            rewrites.append(_in_place(join_dims, mesh, joined, alone=True, large=large))
        rewrites.append(_in_place(combine_collectives, mesh, bucket, COPIED if self.variadic else bucket))
        if self.rings or (self.rings is None and self.hardware is not None):
            rewrites.append(_cleaned(make_rings, mesh, None if self.rings else self.hardware, always=True))
        rewrites += [
            _in_place(join_dims, mesh, joined, large=large),
            _in_place(expand_bitwise, mesh),
            _in_place(clamp_starts, mesh),
            _in_place(crop_windows, mesh),
        ]
        if self.platform != "tpu":
            rewrites.append(_in_place(drop_unit_dims))
        if self.platform == "cpu":
            rewrites += [
                _in_place(merge_dims),
                _in_place(split_sums),
                ("rectify_in_calls", rectify_in_calls),
                ("slice_late", slice_late),
                _in_place(keep_row_major),
            ]
        rewrites.append(_in_place(order_carries))
        if self.platform == "tpu":
            rewrites.append(_in_place(rewrite_for_tpu, mesh))
        if self.hardware is not None:
            rewrites.append(_in_place(order_for_overlap, mesh, self.hardware))
        return rewrites

    def _seconds(self, module: Module) -> float:
        """What a call takes, its ops in the order in which they are written."""
        assert self.hardware is not None
        return Timeline(module.mesh, self.hardware, as_written=True).block(module.main.body).total


def _in_place(change: Callable[..., object], *args: Any, **kwargs: Any) -> Rewrite:
    """Changes the block of `main`."""

    def rewrite(module: Module) -> Module:
        change(module.main.body, *args, **kwargs)
        return module

    return change.__name__, rewrite


def _cleaned(change: Callable[..., object], *args: Any, always: bool = False) -> Rewrite:
    """The same, and what nothing uses any more goes, if it changed anything, or always."""

    def rewrite(module: Module) -> Module:
        return Simplify()(module) if change(module.main.body, *args) or always else module

    return change.__name__, rewrite
