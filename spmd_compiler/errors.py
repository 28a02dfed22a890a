"""The errors of the compiler."""

from __future__ import annotations


class SpmdError(Exception):
    """Base of every error that the compiler raises on purpose."""


class ParseError(SpmdError, ValueError):
    """Malformed IR or StableHLO text, at `line` and `column` (from 1)."""

    def __init__(self, message: str, line: int = 0, column: int = 0):
        super().__init__(message)
        self.line = line
        self.column = column


class LayoutError(SpmdError, ValueError):
    """A layout that does not fit its mesh, its value, or its argument."""


class MeshError(SpmdError, ValueError):
    """A mesh that can't be made, or two meshes where one is needed."""


class ArgumentError(SpmdError, TypeError):
    """An argument of the wrong kind or structure."""


class UnsupportedError(SpmdError, NotImplementedError):
    """A program that can't be partitioned, such as one that calls back to the host."""


class DeletedError(SpmdError, RuntimeError):
    """An argument whose buffer is gone: it was donated to an earlier call, or deleted."""
