"""A zoo of SPMD programs: pure `jax.numpy` functions, a mesh shape, and layouts of the inputs only.

They are shaped like real programs and small enough for 8 virtual CPU devices. `CASES` holds them by name.
"""

from . import accum, attention, conv, lm, mlp, moe, numeric, reshard, rnn, slices, tutorial
from .registry import CASES, FREE, Built, Case, hints_on, names

__all__ = [
    "CASES",
    "FREE",
    "Built",
    "Case",
    "accum",
    "attention",
    "conv",
    "hints_on",
    "lm",
    "mlp",
    "moe",
    "names",
    "numeric",
    "reshard",
    "rnn",
    "slices",
    "tutorial",
]
