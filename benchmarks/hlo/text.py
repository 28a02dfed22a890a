"""Optimized HLO text to instructions and computations."""

from __future__ import annotations

import math
import re
from collections import defaultdict

Leaf = tuple[str, tuple[int, ...]]  # element type, dims

_BITS = {
    **dict.fromkeys(("pred", "s1", "u1", "s8", "u8"), 8),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
    "s2": 2,
    "u2": 2,
    "token": 0,
    "opaque": 0,
}
_SHAPE = re.compile(r"([a-z]+[a-z0-9]*)\[([^\]]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^\s*(ENTRY\s+)?%?([^\s(]+)\s*(\(.*)?\{\s*$")
_BARE_HEADER = re.compile(r"^[\w.\-]+\s*(\(.*\)\s*->.*)?\{$")
_ASSIGN = re.compile(r"^(ROOT\s+)?%?([^\s=]+)\s*=\s*")
_OPERAND = re.compile(r"%?([^\s%]+)$")


def balanced(text: str, start: int, left: str = "(", right: str = ")") -> int:
    """The index just after the bracket that closes text[start]; strings are skipped."""
    depth, i = 0, start
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while i < len(text) and text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c == left:
            depth += 1
        elif c == right:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    raise ValueError("unbalanced: " + text[:120])


def split_top(text: str, separator: str = ",") -> list[str]:
    """The parts between separators that are in no bracket or string."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while i < len(text) and text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def parse_shape(text: str) -> list[Leaf]:
    """The arrays of a (tuple) shape; memory layouts are dropped."""
    leaves = []
    for m in _SHAPE.finditer(text):
        dims = [d.strip().lstrip("<=?") for d in m[2].split(",") if d.strip()]
        if all(d.isdigit() for d in dims):
            leaves.append((m[1], tuple(map(int, dims))))
    return leaves


def shape_bytes(leaves: list[Leaf]) -> int:
    return sum((math.prod(dims) * _bits(dtype) + 7) // 8 for dtype, dims in leaves)


def _bits(dtype: str) -> int:
    return _BITS.get(dtype) or (0 if dtype in _BITS else 8 if dtype.startswith("f8") else 32)


class Instruction:
    """One line: `argument` is the text between the parentheses, `attrs` what follows them."""

    def __init__(self, match: re.Match[str], text: str):
        self.root = bool(match[1])
        self.name = match[2]
        end = balanced(text, 0) if text.startswith("(") else text.find(" ")
        self.shape_text = text[:end]
        rest = text[end:].lstrip()
        paren = rest.find("(")
        close = balanced(rest, paren)
        self.op = rest[:paren].strip()
        self.argument = _COMMENT.sub("", rest[paren + 1 : close - 1])
        self.shape = parse_shape(_COMMENT.sub("", self.shape_text))
        self.attrs = rest[close:].lstrip(", ")
        self.operands: list[str] = []
        if self.op not in ("constant", "parameter", "iota"):
            found = (_OPERAND.search(a) for a in split_top(self.argument))
            self.operands = [m[1] for m in found if m]

    def attr(self, key: str) -> str | None:
        """The text of an attribute."""
        m = re.search(r"(?:^|, ?)" + re.escape(key) + r"=", self.attrs)
        if not m:
            return None
        rest = self.attrs[m.end() :]
        return rest[: balanced(rest, 0, "{", "}")] if rest.startswith("{") else split_top(rest)[0]

    def name_attr(self, key: str) -> str:
        """An attribute that names a computation or a target; "" if absent."""
        return (self.attr(key) or "").strip('{}"').lstrip("%")

    def names_attr(self, key: str) -> list[str]:
        text = (self.attr(key) or "").strip("{}")
        return [n.strip().lstrip("%") for n in text.split(",")] if text else []


class Computation:
    def __init__(self, name: str):
        self.name = name
        self.instructions: list[Instruction] = []
        self.by_name: dict[str, Instruction] = {}
        self._users: dict[str, list[tuple[Instruction, int]]] | None = None

    @property
    def root(self) -> Instruction:
        return next((i for i in self.instructions if i.root), self.instructions[-1])

    @property
    def users(self) -> dict[str, list[tuple[Instruction, int]]]:
        """Per instruction, who uses it and as which operand."""
        if self._users is None:
            self._users = defaultdict(list)
            for ins in self.instructions:
                for k, operand in enumerate(ins.operands):
                    self._users[operand].append((ins, k))
        return self._users

    def parameter(self, index: int) -> str | None:
        """The name of a parameter."""
        found = (i.name for i in self.instructions if i.op == "parameter" and int(i.argument) == index)
        return next(found, None)


class Module:
    """The computations of an HLO text; `devices` is partitions times replicas."""

    def __init__(self, text: str):
        self.text = text
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self.devices = 1
        current: Computation | None = None
        for raw in text.splitlines():
            line = raw.rstrip()
            if not line.strip():
                continue
            if current is None:
                current = self._header(line)
            elif line.strip().startswith("}"):
                self.computations[current.name] = current
                current = None
            else:
                match = _ASSIGN.match(line.strip())
                if match and "(" in line:
                    ins = Instruction(match, line.strip()[match.end() :])
                    current.instructions.append(ins)
                    current.by_name[ins.name] = ins
        if not self.entry and self.computations:
            self.entry = list(self.computations)[-1]

    def _header(self, line: str) -> Computation | None:
        if line.startswith("HloModule"):
            counts = re.findall(r"(?:num_partitions|replica_count)=(\d+)", line)
            self.devices = math.prod(max(1, int(n)) for n in counts)
            return None
        named = line.startswith(("%", "ENTRY")) or _BARE_HEADER.match(line)
        match = _HEADER.match(line) if named and line.endswith("{") else None
        if match is None:
            return None
        if match[1]:
            self.entry = match[2]
        return Computation(match[2])
