"""Sharding rules as text, like an einsum: which dims of an op's operands and results are cut together.

    b i, i o -> b o {i=sum}              a product: `i` is summed over
    ... (g h), g -> ... g {h=4, h=whole} a dim of two factors, major to minor; `...` stands for any leading dims

Values are separated by commas, dims by spaces. In braces, per factor (or `...`): its size, where no dim tells it; the reduction
that joins what devices make of their blocks of it (sum, max …), for the results that lack it; `whole`, if it can't be
cut; `permuted`, if cutting it makes devices exchange data. Values and `...` are read as JAX's and Shardy's rules are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, NoReturn

from .layout import PARTIAL_KINDS
from .scanner import AnnotationError, Scanner

_TOKEN = re.compile(r"\.\.\.\d*|->|[^\W\d_]\w*|\d+|\S")
_SHARDY_FACTOR = re.compile(r"[a-z](?:_\d+)?")
WHOLE, PERMUTED = "whole", "permuted"


class ValueText(NamedTuple):
    """`batch`: the group of `...`, None without one. `dims`: the factors of each further dim, major to minor."""

    batch: int | None
    dims: tuple[tuple[str, ...], ...]

    @property
    def factors(self) -> frozenset[str]:
        batch = () if self.batch is None else (batch_name(self.batch),)
        return frozenset(f for d in self.dims for f in d).union(batch)


class RuleText(NamedTuple):
    """A rule before it meets shapes. `sizes`: those written down; `reduced`: kinds of reductions."""

    operands: tuple[ValueText, ...]
    results: tuple[ValueText, ...]
    sizes: dict[str, int]
    reduced: dict[str, str]
    whole: frozenset[str]
    permuted: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return frozenset().union(*(v.factors for v in (*self.operands, *self.results)))


def batch_name(group: int) -> str:
    """How `...` is written: those of one group stand for the same dims."""
    return f"...{group or ''}"


@cache
def parse_rule(text: str) -> RuleText:
    """Reads a rule. Raises ParseError with the column of the mistake."""
    return _Parser(text).rule()


class _Parser(Scanner):
    tokens = _TOKEN

    def __init__(self, text: str):
        super().__init__(text)
        self.names: set[str] = set()

    def reject(self, message: str, token: int) -> NoReturn:
        column = self.place(token) + 1
        raise AnnotationError(f"sharding rule {self.text!r}, column {column}: {message}", self.text, column)

    def refuse(self, message: str) -> NoReturn:
        """Raises the error, at the next token."""
        self.reject(message, self.position)

    def rule(self) -> RuleText:
        operands = self.values()
        if not self.skip("->"):
            self.refuse("expected '->' between operands and results")
        results = self.values()
        rule = RuleText(operands, results, *self.entries())
        if self.peek():
            self.refuse(f"unexpected {self.peek()!r}")
        return rule

    def values(self) -> tuple[ValueText, ...]:
        values = [self.value()]
        while self.skip(","):
            values.append(self.value())
        return tuple(values)

    def value(self) -> ValueText:
        batch = None
        if self.peek().startswith("..."):
            batch = int(self.next()[3:] or 0)
            self.names.add(batch_name(batch))
        dims: list[tuple[str, ...]] = []
        while (token := self.peek()) not in ("", ",", "->", "{"):
            if token.startswith("."):
                self.refuse("'...' stands only at the beginning of a value")
            dims.append(self.compound() if token == "(" else (self.factor(),))
        return ValueText(batch, tuple(dims))

    def compound(self) -> tuple[str, ...]:
        self.next()
        factors: list[str] = []
        while self.peek() != ")":
            factors.append(self.factor())
        if len(factors) < 2:
            self.refuse("brackets hold at least two factors")
        self.next()
        return tuple(factors)

    def factor(self) -> str:
        token = self.peek()
        if not token or not (token[0].isalpha()):
            self.refuse(f"expected a factor, not {token or 'the end'!r}")
        self.names.add(token)
        return self.next()

    def entries(self) -> tuple[dict[str, int], dict[str, str], frozenset[str], frozenset[str]]:
        sizes: dict[str, int] = {}
        reduced: dict[str, str] = {}
        marked: dict[str, set[str]] = {WHOLE: set(), PERMUTED: set()}
        if self.skip("{"):
            while not self.skip("}"):
                name = self.peek()
                if name.startswith("..."):
                    name = batch_name(int(name[3:] or 0))
                if name not in self.names:
                    self.refuse(f"no value has a factor {self.peek() or 'the end'!r}")
                self.next()
                if not self.skip("="):
                    self.refuse(f"expected '=' after {name!r}")
                word = self.peek()
                if word.isdigit() and not name.startswith("..."):
                    sizes[name] = int(word)
                elif word in PARTIAL_KINDS:
                    reduced[name] = word
                elif word in marked:
                    marked[word].add(name)
                else:
                    kinds = ", ".join((*PARTIAL_KINDS, WHOLE, PERMUTED))
                    self.refuse(f"{name} is a size or one of {kinds}, not {word!r}")
                self.next()
                if not self.skip(",") and self.peek() != "}":
                    self.refuse("expected ',' or '}'")
        return sizes, reduced, frozenset(marked[WHOLE]), frozenset(marked[PERMUTED])


def print_rule(rule: RuleText) -> str:
    """The text of a rule, in one spelling."""

    def values(texts: Sequence[ValueText]) -> str:
        return ", ".join(
            " ".join(
                ([] if v.batch is None else [batch_name(v.batch)])
                + [d[0] if len(d) == 1 else f"({' '.join(d)})" for d in v.dims]
            )
            for v in texts
        )

    entries = [f"{f}={n}" for f, n in rule.sizes.items()] + [
        f"{f}={kind}" for f, kind in rule.reduced.items()
    ]
    entries += [f"{f}={WHOLE}" for f in sorted(rule.whole)] + [
        f"{f}={PERMUTED}" for f in sorted(rule.permuted)
    ]
    text = f"{values(rule.operands)} -> {values(rule.results)}".strip()
    return f"{text} {{{', '.join(entries)}}}" if entries else text


def parse_shardy_rule(text: str) -> RuleText:
    """Reads `#sdy.op_sharding_rule<([i, jk], [k])->([i, j]) {i=8, j=2, k=4} reduction={k}, custom>`. Reductions are
    sums, as Shardy has no others. Raises ParseError."""
    s = Scanner(text)
    s.expect("#", "sdy.op_sharding_rule", "<")
    operands = _shardy_values(s)
    s.expect("-", ">")
    results = _shardy_values(s)
    sizes: dict[str, int] = {}
    if s.skip("{"):
        while not s.skip("}"):
            name = s.name()
            s.expect("=")
            sizes[name] = s.integer()
            s.skip(",")
    kinds: dict[str, list[str]] = {}
    while not s.skip(">"):
        if s.skip(","):
            s.expect("custom")
            continue
        kind = s.name()
        s.expect("=", "{")
        names = kinds[kind] = []
        while not s.skip("}"):
            names.append(s.name())
            s.skip(",")
    s.end()
    return RuleText(
        operands,
        results,
        sizes,
        dict.fromkeys(kinds.get("reduction", ()), "sum"),
        frozenset(kinds.get("need_replication", ())),
        frozenset(kinds.get("permutation", ())),
    )


def _shardy_values(s: Scanner) -> tuple[ValueText, ...]:
    s.expect("(")
    values: list[ValueText] = []
    while not s.skip(")"):
        s.expect("[")
        dims: list[tuple[str, ...]] = []
        while not s.skip("]"):
            dims.append(tuple(_SHARDY_FACTOR.findall(s.name())))
            s.skip(",")
        values.append(ValueText(None, tuple(dims)))
        s.skip(",")
    return tuple(values)
