"""Public bugs of partitioners as small programs; `benchmarks/scorecard.py` runs them through Shardy and GSPMD too."""

from . import batched, indexing, loops, matmuls, moving, reductions, slices, unreduced
from .registry import BUGS, Bug, Program

__all__ = [
    "BUGS",
    "Bug",
    "Program",
    "batched",
    "indexing",
    "loops",
    "matmuls",
    "moving",
    "reductions",
    "slices",
    "unreduced",
]
