"""A counter of collectives in optimized HLO, which is what XLA really runs, whoever partitioned it."""

from .count import analyze, memory, report
from .groups import group_axes, parse_groups

__all__ = ["analyze", "group_axes", "memory", "parse_groups", "report"]
