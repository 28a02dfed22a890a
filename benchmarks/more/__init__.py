"""More programs of the zoo's kinds, without figures of what a good partitioning sends: XLA's partitioners are what they are
compared with. `MORE` holds them by name."""

from benchmarks import zoo

from . import (
    arrays,
    codebases,
    equations,
    images,
    layers,
    linear,
    loops,
    manual,
    models,
    moved,
    networks,
    numerics,
    practice,
    recommend,
    research,
    science,
    sequences,
    signals,
    statistics,
    training,
)
from .registry import MORE

OF = {"zoo": zoo.CASES, "more": MORE}  # what benchmarks that run either are asked for

__all__ = [
    "MORE",
    "OF",
    "arrays",
    "codebases",
    "equations",
    "images",
    "layers",
    "linear",
    "loops",
    "manual",
    "models",
    "moved",
    "networks",
    "numerics",
    "practice",
    "recommend",
    "research",
    "science",
    "sequences",
    "signals",
    "statistics",
    "training",
]
