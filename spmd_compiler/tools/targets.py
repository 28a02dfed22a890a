"""What `spmd-dump` can look at: a Python function, a StableHLO file, a stage file. All become a `View`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import ir
from ..errors import SpmdError
from ..frontend import from_stablehlo
from ..ir.exporter import export_text
from ..ir.verify import VerifyError, verify
from ..jit import SpmdFunction
from ..lowered import Lowered
from ..passes.pipeline import STAGES as IR_STAGES
from ..passes.pipeline import compile_module
from ..passes.report import Collective, collectives

_BYTECODE = b"ML\xefR"  # with which MLIR's begins

STAGES = (*IR_STAGES, "stablehlo", "hlo")


class TargetError(SpmdError):
    """A target that is not there, or nothing that can be looked at."""


@dataclass
class View:
    """The stages of one program. `hlo` compiles it; `given` is the stage that a stage file holds."""

    name: str
    stages: dict[str, ir.Module]
    hlo: Callable[[], str]
    lowered: Lowered | None = None
    given: str = ""

    def stage(self, stage: str) -> ir.Module:
        """A stage; raises TargetError for one that comes before a stage file's."""
        if stage not in self.stages:
            raise TargetError(f"{self.name} holds stage {self.given!r}; {stage!r} comes before it")
        return self.stages[stage]

    def text(self, stage: str) -> str:
        """A stage as text; IR stages say which one they are, so that they can be read back."""
        if stage == "hlo":
            return self.hlo()
        if stage == "stablehlo":
            return export_text(self.stage("optimize"))
        module = self.stage(stage)
        attrs = {"stage": stage, **module.attrs}
        return ir.print_module(ir.Module(module.mesh, module.functions, module.name, attrs))

    def collectives(self) -> list[Collective]:
        return collectives(self.stage("optimize"))


def load(target: str) -> View:
    """`file.py:function`, `package.module:function`, a `.mlir` file, or a stage file. Raises TargetError."""
    path, colon, function = target.rpartition(":")
    if colon and not Path(target).exists():
        return _python(path, function)
    file = Path(target)
    if not file.is_file():
        hint = (
            f"; write {target}:FUNCTION"
            if file.suffix == ".py" or target.replace(".", "").isidentifier()
            else ""
        )
        raise TargetError(f"there is no file {target}{hint}")
    if file.suffix == ".py":
        raise TargetError(f"write {target}:FUNCTION; it has {_functions(_load_file(file))}")
    data = file.read_bytes()
    try:
        text = data if data.startswith(_BYTECODE) else data.decode()
    except UnicodeDecodeError:
        raise TargetError(f"{target} is neither text nor MLIR bytecode") from None
    if isinstance(text, str) and text.lstrip().startswith("mesh "):
        return _stage_file(target, text)
    lowered = from_stablehlo(text)
    return View(target, lowered.stages, lambda: lowered.compile().as_text(), lowered)


def _python(path: str, function: str) -> View:
    module = _load_file(Path(path)) if path.endswith(".py") else _load_module(path)
    program = getattr(module, function, None)
    if program is None:
        raise TargetError(f"{path} has no {function!r}; it has {_functions(module)}")
    if not isinstance(program, SpmdFunction):
        raise TargetError(
            f"{path}:{function} is a {type(program).__name__}; wrap the function in spmd.spmd_jit"
        )
    lowered = program.lower(*_arguments(module, function, path))
    return View(f"{path}:{function}", lowered.stages, lambda: lowered.compile().as_text(), lowered)


def _arguments(module: ModuleType, function: str, path: str) -> tuple[Any, ...]:
    for name in (f"{function}_args", "example_args"):
        given = getattr(module, name, None)
        if given is not None:
            args = given() if callable(given) else given
            return args if isinstance(args, tuple) else (args,)
    raise TargetError(
        f"{path} does not say with which arguments to compile {function}: define {function}_args() or "
        "example_args(), which return a tuple of arrays or jax.ShapeDtypeStruct"
    )


def _functions(module: ModuleType) -> str:
    names = [n for n, value in vars(module).items() if isinstance(value, SpmdFunction)]
    return ", ".join(names) or "no spmd_jit functions"


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise TargetError(f"there is no file {file}")
    taken = file.stem in sys.modules or file.stem in sys.stdlib_module_names
    spec = importlib.util.spec_from_file_location(f"target_{file.stem}" if taken else file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, "")  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(f"there is no module {name}, seen from here") from None
        raise


def _stage_file(name: str, text: str) -> View:
    module = ir.parse(text)
    if "main" not in module.functions:
        raise TargetError(f"{name} has no function @main")
    try:
        verify(module)
    except VerifyError as error:
        raise TargetError(f"{name} is not well formed: {error}") from None
    given = module.attrs.pop("stage", None)
    if given not in IR_STAGES:
        raise TargetError(f"{name} does not say which stage it is; spmd-dump writes a line `attr stage=...`")

    def hlo() -> str:
        raise TargetError(
            f"{name} is a stage file: XLA compiles a program, from a .py target or a .mlir file"
        )

    return View(name, compile_module(module, given=given), hlo, None, given)
