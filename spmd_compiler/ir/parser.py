"""Reads the text form back."""

from __future__ import annotations

import re

from ..errors import ParseError
from .layout import Layout

_DIM = re.compile(r"(-|[A-Za-z_][\w.:()]*)(?:@(\d+))?\Z")


def parse_layout(text: str) -> Layout:
    """`{a.b,-,c@128 | +d max:e}`; raises ParseError."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise ParseError(f"{text!r} is no layout: one is written like {{a.b,-}}")
    dims_text, _, partial_text = body[1:-1].partition("|")
    dims: list[tuple[str, ...]] = []
    blocks: list[int] = []
    for part in filter(None, (p.strip() for p in dims_text.split(","))):
        match = _DIM.match(part)
        if match is None:
            raise ParseError(f"layout {text!r}: {part!r} is no dim: write -, an axis, or axes joined by dots")
        dims.append(() if match[1] == "-" else tuple(match[1].split(".")))
        blocks.append(int(match[2] or 0))
    partial: list[tuple[str, str]] = []
    for part in partial_text.split():
        kind, _, axis = ("sum", "", part[1:]) if part[0] == "+" else part.partition(":")
        partial.append((axis, kind))
    return Layout(tuple(dims), tuple(partial), tuple(blocks))
