"""Programs of the zoo's kinds with other shapes, meshes and layouts, drawn at random."""

from .draw import Variant, draw, names

__all__ = ["Variant", "draw", "names"]
