"""An interpreter of the IR in numpy: what a module computes, without XLA and without devices.

`run` takes a global module (before expansion), `run_devices` a per-device one, on any mesh: all devices step by step
together, so that collectives are plain array operations. Slow, and plain on purpose: an oracle for tests.
"""

from .machine import InterpretError, run, run_devices
from .shards import cut, join

__all__ = ["InterpretError", "cut", "join", "run", "run_devices"]
