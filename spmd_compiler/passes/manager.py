"""The pass manager: runs passes in order, checks the module after each, and names the pass that broke it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Protocol

from ..ir.graph import Module
from ..ir.verify import VerifyError


class Pass(Protocol):
    """A module in, a new module out; the one given is left as it is. A pass made of several rewrites may have `steps(module)`, which
    yields the name of each with the module after it; the last module is the pass's own."""

    name: ClassVar[str]

    def __call__(self, module: Module) -> Module: ...


Callback = Callable[[Pass, Module], None]
Check = Callable[[Module], None]


class PassError(VerifyError):
    """A pass made a module that is not well formed: a bug in the pass. The message names it."""


def run_passes(
    module: Module,
    passes: Sequence[Pass],
    checks: Callable[[Pass], Sequence[Check]],
    callback: Callback | None = None,
) -> Iterator[tuple[Pass, Module]]:
    """Yields each pass with the module that it made. `checks`: what must hold after a pass; `callback` sees it before.

    Raises PassError."""
    for run in passes:
        given, module = module, run(module)
        if callback is not None:
            callback(run, module)
        for check in checks(run):
            try:
                check(module)
            except VerifyError as error:
                raise PassError(f"after {_blamed(run, given, check)}: {error}") from error
        yield run, module


def _blamed(run: Pass, given: Module, check: Check) -> str:
    """A pass whose module fails a check, and, if it runs again, the first of its steps that does."""
    for name, module in getattr(run, "steps", lambda _: ())(given):
        try:
            check(module)
        except VerifyError:
            return f"{run.name}: {name}"
    return run.name


@contextmanager
def no_cycle_collection() -> Iterator[None]:
    """Passes make many objects that live on; looking for cycles among them again and again would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
