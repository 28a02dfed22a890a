"""spmd_compiler: a global-view JAX program plus a few layouts, compiled into one SPMD program per device."""

from . import checkpoint
from .constraint import relayout
from .cpus import configure_virtual_cpus
from .dtensor import (
    call_with_layout,
    check_layout,
    copy_to_mesh,
    fetch_layout,
    is_dtensor,
    pack,
    relayout_like,
    unpack,
)
from .errors import (
    ArgumentError,
    DeletedError,
    LayoutError,
    MeshError,
    ParseError,
    SpmdError,
    UnsupportedError,
)
from .estimates import Cost, Memory
from .frontend import from_stablehlo
from .jit import spmd_jit
from .layout import UNSHARDED, Layout
from .lowered import Compiled, Lowered
from .mesh import Mesh, create_mesh, default_mesh, get_default_mesh
from .passes.hardware import Hardware
from .passes.pipeline import Options
from .passes.report import Collective
from .runtime import (
    barrier,
    client_id,
    create_distributed_mesh,
    local_devices,
    num_clients,
    num_global_devices,
    num_local_devices,
)
from .sharding_rule import sharding_rule
from .target_rules import register_sharding_rule
from .transforms import register_rules
from .unit_transforms import register_unit_rules

__all__ = [
    "UNSHARDED",
    "ArgumentError",
    "Collective",
    "Compiled",
    "Cost",
    "DeletedError",
    "Hardware",
    "Layout",
    "LayoutError",
    "Lowered",
    "Memory",
    "Mesh",
    "MeshError",
    "Options",
    "ParseError",
    "SpmdError",
    "UnsupportedError",
    "barrier",
    "call_with_layout",
    "check_layout",
    "checkpoint",
    "client_id",
    "configure_virtual_cpus",
    "copy_to_mesh",
    "create_distributed_mesh",
    "create_mesh",
    "default_mesh",
    "fetch_layout",
    "from_stablehlo",
    "get_default_mesh",
    "is_dtensor",
    "local_devices",
    "num_clients",
    "num_global_devices",
    "num_local_devices",
    "pack",
    "register_sharding_rule",
    "relayout",
    "relayout_like",
    "sharding_rule",
    "spmd_jit",
    "unpack",
]

register_rules()  # jax.grad, jax.vmap … of a program
register_unit_rules()  # … of a function with a sharding rule
