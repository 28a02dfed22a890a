"""Products whose operands disagree."""

from jax.sharding import PartitionSpec as P

from .registry import Program, bug, normal


# one operand's block to its place, then the partial sums
@bug(
    "pytorch/pytorch#166598",
    what="product whose contracted dim is sharded in two orders",
    sent=2 * 4 * 16 * 4 + 2 * 7 / 8 * 16 * 16 * 4,
    x=4,
    y=2,
)
def contraction_in_two_orders() -> Program:
    args = normal(16, 64), normal(64, 16, seed=1)
    return Program(lambda a, b: a @ b, args, (P(None, ("x", "y")), P(("y", "x"))), P())
