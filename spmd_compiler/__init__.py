"""spmd_compiler: a global-view JAX program plus a few layouts, compiled into one SPMD program per device."""

from .constraint import relayout
from .cpus import configure_virtual_cpus
from .errors import ArgumentError, LayoutError, MeshError, ParseError, SpmdError, UnsupportedError
from .frontend import from_stablehlo
from .jit import spmd_jit
from .layout import UNSHARDED, Layout
from .lowered import Compiled, Lowered
from .mesh import Mesh, create_mesh, default_mesh, get_default_mesh
from .passes.pipeline import Options
from .passes.report import Collective
from .transforms import register_rules

__all__ = [
    "UNSHARDED",
    "ArgumentError",
    "Collective",
    "Compiled",
    "Layout",
    "LayoutError",
    "Lowered",
    "Mesh",
    "MeshError",
    "Options",
    "ParseError",
    "SpmdError",
    "UnsupportedError",
    "configure_virtual_cpus",
    "create_mesh",
    "default_mesh",
    "from_stablehlo",
    "get_default_mesh",
    "relayout",
    "spmd_jit",
]

register_rules()  # jax.grad, jax.vmap … of a program
