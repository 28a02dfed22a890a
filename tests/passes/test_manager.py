"""A pass that makes a module which is not well formed is named, and the step of it that does."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import pytest

import spmd_compiler as spmd
from benchmarks import zoo
from benchmarks.zoo_compile import mesh_of, partitioned, placed
from spmd_compiler.ir.graph import Op
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.hardware import PRESETS
from spmd_compiler.passes.manager import PassError, run_passes
from spmd_compiler.passes.optimize import Optimize
from spmd_compiler.passes.simplify import Simplify

TEXT = """mesh {a=2}
func @main(%x: f32[4] {-}) -> (f32[4] {-}) {
  %0: f32[4] {-} = negate(%x)
  return %0
}
"""


@dataclass(frozen=True)
class Spoils:
    """Runs steps of which some leave behind an op without its operand."""

    bad: tuple[bool, ...]
    name: ClassVar[str] = "spoils"

    def __call__(self, module):
        made = module
        for _, made in self.steps(module):  # noqa: B007
            pass
        return made

    def steps(self, module):
        for k, bad in enumerate(self.bad):
            module = Simplify()(module)
            if bad:
                block = module.main.body
                block.ops.append(Op("negate", [], [block.ops[0].result]))
            yield f"step {k}", module


def run(*passes):
    return list(run_passes(spmd.ir.parse(TEXT), passes, lambda _: [verify]))


def test_the_step_that_breaks_a_module_is_named():
    assert [done.name for done, _ in run(Simplify(), Spoils((False, False)))] == ["simplify", "spoils"]
    with pytest.raises(PassError, match=r"^after spoils: step 1: "):
        run(Simplify(), Spoils((False, True)))


@pytest.mark.parametrize(
    "options", [{}, {"hardware": PRESETS["tpu-v5p"], "platform": "tpu"}, {"rings": True}]
)
@pytest.mark.parametrize("name", ["lm_fsdp_train_scan", "conv_spatial_train", "moe_top2_fwd"])
def test_each_step_of_optimize_leaves_a_module_well_formed(name, options):
    case = zoo.CASES[name]
    built, mesh = case.build(), mesh_of(case.mesh, jax.devices())
    with zoo.hints_on(mesh):
        lowered = partitioned(built, mesh).lower(*placed(built, mesh, abstract=True))
    names = []
    for step, module in Optimize(memory=1e6, **options).steps(lowered.stages["expand"]):
        names.append(step)
        verify(module)
    assert names[0] == "simplify"
    assert {"combine_collectives", "order_carries"} < {*names}
