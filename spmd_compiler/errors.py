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
