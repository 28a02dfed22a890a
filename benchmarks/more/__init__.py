"""More programs of the zoo's kinds, without figures of what a good partitioning sends: XLA's partitioners are what they are
compared with. `MORE` holds them by name."""

from . import (
    arrays,
    layers,
    loops,
    models,
    moved,
    networks,
    numerics,
    practice,
    research,
    science,
    signals,
    training,
)
from .registry import MORE

__all__ = [
    "MORE",
    "arrays",
    "layers",
    "loops",
    "models",
    "moved",
    "networks",
    "numerics",
    "practice",
    "research",
    "science",
    "signals",
    "training",
]
