"""The intermediate representation: types, mesh, layouts, graph, and its text."""

from .graph import Block, Dense, Function, Loc, Module, Op, Raw, Value
from .layout import Layout
from .mesh import Mesh
from .parser import parse, parse_layout
from .text import print_module
from .types import TOKEN, TensorType, TokenType

__all__ = [
    "TOKEN",
    "Block",
    "Dense",
    "Function",
    "Layout",
    "Loc",
    "Mesh",
    "Module",
    "Op",
    "Raw",
    "TensorType",
    "TokenType",
    "Value",
    "parse",
    "parse_layout",
    "print_module",
]
