"""chlo.scan: what JAX 0.12 lowers cumulative sums to on GPUs. Looked at in the IR: XLA's CPU compiler aborts on it.
The rule checker tries every strategy."""

import pytest

from spmd_compiler import ir
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes.pipeline import compile_module
from spmd_compiler.passes.report import collectives
from spmd_compiler.tools.fuzz.check import failure

PROGRAM = """mesh {a=4, b=2}
func @main(%x: f32[LENGTH,6] {a,b}) -> (f32[LENGTH,6], f32[6]) {
  %0: f32[] = constant() value=dense<float32[]: 2.0>
  %1: f32[6] = broadcast_in_dim(%0) broadcast_dimensions=[]
  %5: f32[LENGTH,6], %6: f32[6] = chlo.scan(%x, %1) dimension=0 is_associative=ASSOCIATIVE is_reverse=REVERSE ({ (%2: f32[6], %3: f32[6])
    %4: f32[6] = COMBINE(%2, %3)
    return %4, FINAL
  })
  return %5, %6
}
"""


def program(length=32, associative="true", reverse="false", combine="add", final="%4"):
    text = PROGRAM.replace("LENGTH", str(length)).replace("ASSOCIATIVE", associative)
    module = ir.parse(text.replace("REVERSE", reverse).replace("COMBINE", combine).replace("FINAL", final))
    module.main.result_attrs[0]["layout"] = Layout((("a",), ("b",)))
    return module


def sent(module):
    return [(c.kind, c.bytes_per_device) for c in collectives(compile_module(module)["optimize"])]


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("combine", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("length", [32, 30])
def test_numbers(length, combine, reverse):
    """From an init that is not neutral."""
    assert not failure(program(length, combine=combine, reverse=reverse))


def test_devices_exchange_totals():
    """Each has three columns of the totals, and gathers those of four; the end of the scan is read by no one."""
    module = program()
    module.main.body.returns.pop()
    module.main.result_attrs.pop()
    assert sent(module) == [("all_gather", 3 * 3 * 4)]


@pytest.mark.parametrize("how", [{"associative": "false"}, {"final": "%3"}, {"combine": "subtract"}])
def test_other_scans_run_whole(how):
    module = program(**how)
    assert not failure(module)
    assert all(kind == "all_gather" for kind, _ in sent(module))
