"""Programs of the zoo's kinds with other shapes, meshes and layouts, drawn at random."""

from .draw import ROUNDS, Variant, draw, kind_of, names

__all__ = ["ROUNDS", "Variant", "draw", "kind_of", "names"]
