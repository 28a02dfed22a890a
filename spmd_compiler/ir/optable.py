"""What passes need to know of an op by its name alone: effects, arity, kinds of reducers."""

from __future__ import annotations

import numpy as np

from .graph import Block, Op
from .types import TensorType, Type


def _names(text: str, arity: int) -> dict[str, int]:
    return dict.fromkeys(text.split(), arity)


# Elementwise ops and how many operands they take. `select` and `clamp` may have scalars beside full operands.
ELEMENTWISE: dict[str, int] = {
    **_names("abs bitcast_convert cbrt ceil convert cosine count_leading_zeros exponential", 1),
    **_names(
        "exponential_minus_one floor imag is_finite log log_plus_one logistic negate not popcnt real", 1
    ),
    **_names("reduce_precision round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh", 1),
    **_names("chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.bessel_i1e chlo.conj", 1),
    **_names("chlo.cosh chlo.digamma chlo.erf chlo.erf_inv chlo.erfc chlo.is_inf chlo.is_neg_inf", 1),
    **_names("chlo.is_pos_inf chlo.lgamma chlo.sinh chlo.square chlo.tan", 1),
    **_names("add and atan2 compare complex divide maximum minimum multiply or power remainder", 2),
    **_names("shift_left shift_right_arithmetic shift_right_logical subtract xor", 2),
    **_names("chlo.next_after chlo.polygamma chlo.zeta", 2),
    **_names("select clamp", 3),
}

# Collectives that the compiler inserts; written by the user they have the same names, but no `axes`.
COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"})

# They read what they give, however much there is.
SLICES = ("slice", "dynamic_slice")
RAGGED = "ragged_all_to_all"  # a custom call

# Slices of an all-to-all that XLA compiles as well apart, and with what makes them.
FEW_SLICES = 2

# Ops whose regions run as parts of the program.
CONTROL_FLOW = ("while", "case", "if")

# Ops that run another function, and the attribute that names it.
CALLS = {"call": "callee", "composite": "decomposition"}

# Ops that read or change something beyond their operands, in StableHLO and CHLO.
SIDE_EFFECTS = frozenset({"infeed", "outfeed", "rng", "send", "recv", "async_start", "async_done"})

# Ops of other dialects that are known to be without effect.
_PURE_FOREIGN = frozenset({"sdy.propagation_barrier", "sdy.reshard", "mhlo.topk"})

# What `compare` computes, by its direction.
COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
# The cause of a relayout that the program itself has.
ASKED = "the user asks for it"

# The op that combines two partials of a kind.
COMBINE = {
    "sum": "add",
    "mul": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
_REDUCERS = {name: kind for kind, name in COMBINE.items()}
# On booleans StableHLO's arithmetic is logic.
_BOOLEAN_REDUCERS = {**_REDUCERS, "add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}


def is_remade(op: Op) -> bool:
    """Whether the op makes any block of its result by itself: a constant, positions, or one number everywhere."""
    return op.name in ("constant", "iota") or (op.name == "broadcast_in_dim" and not op.operands[0].type.rank)


def terminator(op_name: str) -> str:
    """The MLIR name of the op that ends the regions of an op."""
    dialect = op_name.partition(".")[0] if "." in op_name else ""
    if dialect == "sdy" or op_name == "manual_computation":
        return "sdy.return"
    return "mhlo.return" if dialect == "mhlo" else "stablehlo.return"


def collective_kind(op: Op) -> str | None:
    """What collective an op is, if any; some come only with programs that have them, and stay as they are written."""
    if op.name in COLLECTIVES or op.name == "collective_broadcast":
        return op.name
    return RAGGED if op.name == "custom_call" and op.attrs.get("call_target_name") == RAGGED else None


def sends(op: Op) -> bool:
    """Whether an op is a collective of the compiler's, over named axes; others came with a per-device program."""
    return op.name in COLLECTIVES and "axes" in op.attrs


def is_pure(op: Op) -> bool:
    """True if the op may be removed when nothing uses its results. A call counts as impure: inline it."""
    name = op.name
    if name in ELEMENTWISE:
        return True
    if name in SIDE_EFFECTS or not op.results:
        return False
    if name == "custom_call":
        return not op.attrs.get("has_side_effect", False)
    if name in ("call", "composite"):
        return False
    if "." in name and not name.startswith("chlo.") and name not in _PURE_FOREIGN:
        return False
    return all(is_pure(inner) for region in op.regions for inner in region.ops)


def may_merge(op: Op) -> bool:
    """True if two such ops with equal operands and attributes may become one. A barrier is kept apart, since
    it exists to stop exactly that (rematerialisation)."""
    return op.name != "optimization_barrier" and is_pure(op)


def reducer_kind(block: Block) -> str | None:
    """The partial kind ("sum", "max", ...) of a region that only combines its two arguments, else None."""
    if len(block.args) != 2 or len(block.ops) != 1 or len(block.returns) != 1:
        return None
    op = block.ops[0]
    if len(op.operands) != 2 or len(op.results) != 1 or block.returns[0] is not op.results[0]:
        return None
    (a, b), (x, y) = op.operands, block.args
    if not ((a is x and b is y) or (a is y and b is x)):
        return None
    return combining_kind(op.name, x.type)


def combining_kind(name: str, type: Type) -> str | None:
    """The partial kind ("sum", "max", ...) that an op of two values of a type makes of them, else None."""
    boolean = isinstance(type, TensorType) and type.dtype == "i1"
    return (_BOOLEAN_REDUCERS if boolean else _REDUCERS).get(name)
