"""More programs of the zoo's kinds, without figures of what a good partitioning sends: XLA's partitioners are what they are
compared with. `MORE` holds them by name."""

from . import (
    arrays,
    arrays_b,
    arrays_c,
    arrays_d,
    models,
    models_b,
    numerics,
    numerics_b,
    numerics_c,
    sequences_b,
    serving_b,
    shapes_b,
    signals,
    solvers_b,
    training,
    training_b,
    uneven_b,
)
from .registry import MORE

__all__ = ["MORE", "arrays", "models", "numerics", "signals", "training"]
