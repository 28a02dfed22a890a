"""How many collectives a program with relayouts comes to is known before it has any."""

import pytest

from spmd_compiler import ir
from spmd_compiler.ir.trips import trip_count
from spmd_compiler.passes.search.message_count import count_messages
from tests.variants import lowered


def counted(module):
    return count_messages(module.main.body, module.mesh, lambda loop: trip_count(loop) or 1)


def summed(*ops):
    """Of values that are sums over "a"; the last op's results leave."""
    lines = "\n".join(f"  {op}" for op in ops)
    return ir.parse(f"""mesh {{a=2, b=2}}
func @main(%x: f32[4] {{- | +a}}, %y: f32[8] {{- | +a}}, %z: f32[262144] {{a}}) -> () {{
{lines}
  return
}}
""")


TOGETHER = "%0: f32[4] {-} = relayout(%x)", "%1: f32[8] {-} = relayout(%y)"
BEHIND = (
    "%2: f32[8] {-} = concatenate(%0, %0) dim=0",
    "%3: f32[8] {- | +a} = multiply(%2, %y)",
    "%4: f32[8] {-} = relayout(%3)",
)
LARGE = "%5: f32[262144] {-} = relayout(%z)", "%6: f32[262144] {-} = relayout(%z)"


@pytest.mark.parametrize(
    ("ops", "count"),
    [
        (TOGETHER, 1),
        ((TOGETHER[0], *BEHIND), 2),
        ((*TOGETHER, *BEHIND), 2),
        ((TOGETHER[0], *BEHIND, TOGETHER[1]), 2),
        (LARGE, 2),
    ],
)
def test_what_does_not_wait_for_each_other_goes_together(ops, count):
    assert counted(summed(*ops)) == count


@pytest.mark.parametrize(
    "name",
    [
        "grad_accum_fsdp_train",
        "lm_fsdp_train_unrolled",
        "lm_fsdp_train_scan_hint",
        "lstm_tp_fwd",
        "matrix_chain_awkward",
        "power_iteration",
    ],
)
def test_as_many_as_are_emitted(name):
    """Of programs whose ops exchange nothing themselves, and whose small reductions are not split."""
    low = lowered(name)
    assert counted(low.stages["propagate"]) == sum(c.trips for c in low.collectives())
