"""What the parsers of sharding annotations share: tokens, and errors that name the column."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, NoReturn, TypeVar

from ..errors import ParseError

T = TypeVar("T")
_TOKEN = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*'|@"(?:[^"\\]|\\.)*"|@?[A-Za-z_][\w.$-]*|-?\d+|<=|#|\S)""")
_COMMENT = re.compile(r"/\*.*?\*/")
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")


class AnnotationError(ParseError):
    """A malformed annotation: `text`, in which `column` counts."""

    def __init__(self, message: str, text: str, column: int):
        super().__init__(message, 1, column)
        self.text = text


class Scanner:
    """Tokens of one annotation; errors name the column. Comments, as XLA writes into long tuples, say nothing."""

    tokens: ClassVar[re.Pattern[str]] = _TOKEN

    def __init__(self, text: str):
        self.text = text
        self._tokens = [
            (m[0], m.start()) for m in self.tokens.finditer(_COMMENT.sub(lambda m: " " * len(m[0]), text))
        ]
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self._at += 1
        return token

    def skip(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self._at += 1
        return True

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.skip(token):
                self.fail(f"expected {token!r}")

    def fail(self, expected: str) -> NoReturn:
        self.reject(f"{expected}, not {self.peek() or 'the end'}", self._at)

    def reject(self, message: str, token: int) -> NoReturn:
        """Raises the error, at a token."""
        raise AnnotationError(f"sharding {self.text!r}: {message}", self.text, self.place(token) + 1)

    def place(self, token: int) -> int:
        """Where in the text a token begins."""
        return self._tokens[token][1] if token < len(self._tokens) else len(self.text)

    @property
    def offset(self) -> int:
        """Where in the text the next token begins."""
        return self.place(self._at)

    @property
    def position(self) -> int:
        """The number of the next token."""
        return self._at

    def integer(self) -> int:
        token = self.peek()
        if not token.lstrip("-").isdigit():
            self.fail("expected a number")
        self._at += 1
        return int(token)

    def positive(self) -> int:
        at, number = self._at, self.integer()
        if number < 1:
            self.reject(f"{number} is not positive", at)
        return number

    def integers(self, close: str) -> tuple[int, ...]:
        """Numbers separated by commas, and the bracket behind them."""
        return tuple(self.listed(close, self.integer))

    def listed(self, close: str, read: Callable[[], T]) -> list[T]:
        """What `read` reads, as often as it stands there, separated by commas, and the bracket behind them."""
        found: list[T] = []
        while not self.skip(close):
            found.append(read())
            if self.peek() != close:
                self.expect(",")
        return found

    def name(self) -> str:
        """An axis: in quotes of either kind, or a bare word."""
        token = self.peek()
        if not re.match(r"[\"'A-Za-z_]", token):
            self.fail("expected the name of an axis")
        self._at += 1
        return token[1:-1] if token[0] in "\"'" else token

    def end(self) -> None:
        if self.peek():
            self.fail("expected the end")


def unescape(text: str) -> str:
    """The content of a string as MLIR prints it between quotes."""
    if "\\" not in text:
        return text
    escaped = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], text)
    return escaped.encode("latin-1", "replace").decode("utf-8", "replace")  # MLIR escapes UTF-8 byte by byte
