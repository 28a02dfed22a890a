"""optimize: cleans up the per-device program. Equal collectives and local ops are merged, unused ones dropped, and small
collectives that can run together are combined, large ones unless the hardware model says that apart they hide better, and
those of one value along several dims are joined; matrix products that wait for large ones become rings. Loops end on each
device by itself where they may, and put together slices of what is gathered; arguments are exchanged before they are computed
with, permutes of permutes become one, what several have in common is sent once, and what is much is sliced before it is
gathered; what the program repeats of its own collectives runs once; starts of slices that XLA would misread are clamped,
windows cropped, reductions that it lacks written otherwise, collectives written as the TPU's compiler keeps them, and ops ordered
so that they run while collectives do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Module
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
from .optimizations.join_dims import BOTH, GATHERS, REDUCES, join_dims
from .optimizations.late_slices import slice_late
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
        module = Simplify()(module)
        if has_written(module.main.body):
            hoist_written(module.main.body)
            drop_uniform_sums(module.main.body, module.mesh)
            module = Simplify()(module)
            join_dims(module.main.body, module.mesh, REDUCES)
        if keep_less(module.main.body):
            module = Simplify()(module)
        if slice_operands(module.main.body):
            module = Simplify()(module)
        if exchange_first(module.main.body, module.mesh):
            module = Simplify()(module)
        compose_permutes(module.main.body, module.mesh)
        share_halos(module.main.body, module.mesh)
        join_barriers(module.main.body)
        sizes = sorted(bucket_sizes(self.hardware, self.memory))
        slice_first(module.main.body, module.mesh, sizes[0])
        if self.memory is not None:
            fit_memory(module.main.body, module.mesh, self.memory)
        if self.platform != "tpu":
            put_together_in_loops(module.main.body, module.mesh)
        free_loops(module.main.body)
        if len(sizes) == 1:
            return self._combined(module, sizes[0])
        return min((self._combined(Simplify()(module), size) for size in sizes), key=self._seconds)

    def _combined(self, module: Module, bucket: int) -> Module:
        """The module, which no one else holds, its collectives combined to `bucket` bytes at most, and what follows from that."""
        # of reduce-scatters over all axes XLA for TPUs makes all-reduces
        joined = GATHERS if self.platform == "tpu" else BOTH
        split_reductions(module.main.body, module.mesh, bucket)
        if not self.rings and self.hardware is None:
            join_dims(module.main.body, module.mesh, joined, alone=True)
        combine_collectives(module.main.body, module.mesh, bucket, COPIED if self.variadic else bucket)
        if self.rings or (self.rings is None and self.hardware is not None):
            make_rings(module.main.body, module.mesh, None if self.rings else self.hardware)
            module = Simplify()(module)
        join_dims(module.main.body, module.mesh, joined)
        expand_bitwise(module.main.body, module.mesh)
        clamp_starts(module.main.body, module.mesh)
        crop_windows(module.main.body, module.mesh)
        if self.platform != "tpu":
            drop_unit_dims(module.main.body)
        if self.platform == "cpu":
            split_sums(module.main.body)
            module = rectify_in_calls(module)
            module = slice_late(module)
            keep_row_major(module.main.body)
        order_carries(module.main.body)
        if self.platform == "tpu":
            rewrite_for_tpu(module.main.body, module.mesh)
        if self.hardware is not None:
            order_for_overlap(module.main.body, module.mesh, self.hardware)
        return module

    def _seconds(self, module: Module) -> float:
        """What a call takes, its ops in the order in which they are written."""
        assert self.hardware is not None
        return Timeline(module.mesh, self.hardware, as_written=True).block(module.main.body).total
