"""MLIR locations to `Loc` and back."""

from __future__ import annotations

import os
import re

import jaxlib
from jaxlib.mlir import ir

from .graph import UNKNOWN_LOC, Loc
from .scanner import unescape

_STRING = r'"((?:[^"\\]|\\.)*)"'
_SCOPE = re.compile(rf"loc\({_STRING}(?:\)|\()")
_FRAME = re.compile(rf"{_STRING}:(\d+):(\d+)")
_NAME_ONLY = re.compile(rf"loc\({_STRING}\)\Z")

_SITE = os.path.dirname(os.path.abspath(jaxlib.__path__[0]))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Frames of JAX and of this compiler say nothing about the user's program.
_INTERNAL = tuple(d + os.sep for d in (os.path.join(_SITE, "jax"), os.path.join(_SITE, "jaxlib"), _PACKAGE))
# Those of other libraries say less than the line that calls them.
_LIBRARIES = (_SITE + os.sep, os.path.dirname(os.path.abspath(os.__file__)) + os.sep)


def parse_location(text: str) -> Loc:
    """Reads the text of an MLIR location: the outer name is the scope, the innermost user frame the line, or the outermost
    one of a library that no user frame is recorded for."""
    if text == "loc(unknown)":
        return UNKNOWN_LOC
    named = _SCOPE.match(text)
    scope = unescape(named[1]) if named else ""
    library = Loc("", 0, scope, 0)
    for frame in _FRAME.finditer(text):
        file = unescape(frame[1])
        if file.startswith(_INTERNAL) or "/jax/_src/" in file or file.startswith("<frozen "):
            continue
        found = Loc(file, int(frame[2]), scope, int(frame[3]))
        if not file.startswith(_LIBRARIES):
            return found
        library = found
    return library


def argument_name(text: str) -> str:
    """An argument's name as JAX gives it, `params[0]['w']`, as an identifier: `params_0_w`; or ""."""
    named = _NAME_ONLY.match(text)
    if not named:
        return ""
    name = re.sub(r"\W+", "_", unescape(named[1]), flags=re.ASCII).strip("_")
    return f"arg_{name}" if name[:1].isdigit() else name


def write_location(loc: Loc, context: ir.Context) -> ir.Location:
    """The name around the file position, which XLA shows as `op_name` and `source_file`."""
    file = ir.Location.file(loc.file, loc.line, loc.column, context) if loc.file else None
    if loc.scope:
        return ir.Location.name(loc.scope, file, context)
    return file or ir.Location.unknown(context)
