"""What several layouts of one value cost together."""

import itertools

from spmd_compiler.ir.layout import Layout
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.types import TensorType
from spmd_compiler.passes.search.assignment import Costs

MESH = Mesh([("a", 2), ("b", 4)])


def test_many_users_pay_the_same_in_any_order():
    """The whole value is gathered once; the other layouts are sliced from it, which costs next to nothing."""
    made, type = Layout((("a",), ())), TensorType((64, 64), "f32")
    wanted = [Layout(((), ())), Layout(((), ("a",))), Layout((("b",), ())), Layout(((), ("b", "a")))]
    costs = Costs(MESH)
    gathered = costs.relayout(type, made, wanted[0])
    for order in itertools.permutations(wanted):
        cost, how = costs.distribute(type, made, order)
        assert gathered <= cost < 1.01 * gathered and how[0] == (made, wanted[0])
        assert {demand for _, demand in how} == {*wanted}
