"""Sharding rules (`factor_text`) for values of given shapes: which factors there are, how large, and which can be cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .factor_text import RuleText, ValueText, batch_name

Dims = tuple[tuple[int, ...], ...]  # of one value: the factors of each dim, major to minor


@dataclass(frozen=True)
class FactorRule:
    """A rule for values of given shapes; factors are numbered, `names` are those in its text. `reduced`: how to join what devices make of their
    blocks, for results without that factor. `cut`: factors that blocks of dims can stand for; of these `permuted`
    makes devices exchange data, and only `padded` may have blocks that reach beyond the end."""

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    reduced: dict[int, str]
    cut: frozenset[int]
    permuted: frozenset[int]
    padded: frozenset[int]

    def cutting(self, dims: Dims) -> tuple[int | None, ...]:
        """Of each dim the factor whose blocks are blocks of the dim, None if it can't be cut."""
        majors = (next((f for f in factors if self.sizes[f] > 1), None) for factors in dims)
        return tuple(f if f in self.cut else None for f in majors)


def fit_rule(
    rule: RuleText, operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]
) -> FactorRule:
    """The rule for values of these shapes. Raises ValueError, saying which value does not fit."""
    return _Fitter(rule, operands, results).fit()


class _Fitter:
    def __init__(
        self, rule: RuleText, operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]
    ):
        self.rule = rule
        self.shapes = [*operands, *results]
        self.split = len(operands)
        self.batch_ranks: dict[int, int] = {}
        texts: list[ValueText] = []
        for what, values, shapes in (("operand", rule.operands, operands), ("result", rule.results, results)):
            if values == (ValueText(None, ()),) and not shapes:
                values = ()  # nothing between the commas is a scalar, or no value at all
            if len(values) != len(shapes):
                raise ValueError(f"the rule has {len(values)} {what}s, but there are {len(shapes)}")
            texts += values
        self.names = [self.value(i, text) for i, text in enumerate(texts)]

    def what(self, i: int) -> str:
        return f"operand {i}" if i < self.split else f"result {i - self.split}"

    def value(self, i: int, text: ValueText) -> list[tuple[str, ...]]:
        """The factors of each dim, those that `...` stands for too."""
        extra = len(self.shapes[i]) - len(text.dims)
        if extra < 0 or (extra and text.batch is None):
            raise ValueError(f"{self.what(i)} has {len(self.shapes[i])} dims, but the rule {len(text.dims)}")
        if text.batch is None:
            return list(text.dims)
        if self.batch_ranks.setdefault(text.batch, extra) != extra:
            raise ValueError(
                f"'...' stands for {extra} dims of {self.what(i)}, but for {self.batch_ranks[text.batch]} before"
            )
        return [*((f"{batch_name(text.batch)}.{k}",) for k in range(extra)), *text.dims]

    def sizes(self) -> tuple[dict[str, int], set[str]]:
        """Sizes, and the factors that dims of several sizes have."""
        sizes = dict(self.rule.sizes)
        several: set[str] = set()
        for i, (dims, shape) in enumerate(zip(self.names, self.shapes, strict=True)):
            for factors, n in zip(dims, shape, strict=True):
                if len(factors) != 1:
                    continue
                f = factors[0]
                if f.startswith("...") and sizes.get(f, n) != n:
                    raise ValueError(f"'...' of {self.what(i)} is {n} where it is {sizes[f]} before")
                if sizes.setdefault(f, n) != n:
                    several.add(f)
                    sizes[f] = min(n, sizes[f])
        for i, (dims, shape) in enumerate(zip(self.names, self.shapes, strict=True)):
            for factors, n in zip(dims, shape, strict=True):
                if len(factors) > 1:
                    self.compound(i, factors, n, sizes)
        return sizes, several

    def compound(self, i: int, factors: tuple[str, ...], n: int, sizes: dict[str, int]) -> None:
        unknown = [f for f in factors if f not in sizes]
        known = math.prod(sizes[f] for f in factors if f in sizes)
        if len(unknown) > 1:
            raise ValueError(f"the sizes of {' and '.join(unknown)} are not known; give all but one of them")
        if unknown and known and n % known == 0:
            sizes[unknown[0]] = n // known
        elif unknown or known != n:
            raise ValueError(f"({' '.join(factors)}) is a dim of size {n} of {self.what(i)}, not of {known}")

    def fit(self) -> FactorRule:
        sizes, several = self.sizes()
        number = {
            f: k for k, f in enumerate(dict.fromkeys(f for dims in self.names for d in dims for f in d))
        }
        results = self.names[self.split :]
        reduced = {f: kind for f in number if (kind := self.rule.reduced.get(_group(f)))}
        whole = {f for f in number if _group(f) in self.rule.whole}
        in_operands = {f for dims in self.names[: self.split] for d in dims for f in d}
        cut: set[str] = set()
        split: set[str] = set()  # factors of dims that have others behind them
        for f in number:
            in_results = all(any(f in d for d in dims) for dims in results)
            if f not in in_operands or f in several or f in whole or not (in_results or f in reduced):
                continue
            if all(self.once_and_major(f, dims, sizes, split) for dims in self.names):
                cut.add(f)
        values = [tuple(tuple(number[f] for f in d) for d in dims) for dims in self.names]
        permuted = {f for f in cut if _group(f) in self.rule.permuted}
        padded = cut - split - permuted - reduced.keys()
        return FactorRule(
            tuple(values[: self.split]),
            tuple(values[self.split :]),
            tuple(_group(f) for f in number),
            tuple(sizes[f] for f in number),
            {number[f]: kind for f, kind in reduced.items()},
            frozenset(number[f] for f in cut),
            frozenset(number[f] for f in permuted),
            frozenset(number[f] for f in padded),
        )

    @staticmethod
    def once_and_major(f: str, dims: list[tuple[str, ...]], sizes: dict[str, int], split: set[str]) -> bool:
        """Whether blocks of a dim are blocks of the factor, in the one dim that has it, if any."""
        places = [d for d in dims if f in d]
        if not places:
            return True
        real = [g for g in places[0] if sizes[g] != 1 or g == f]
        if len(real) > 1:
            split.add(f)
        return len(places) == 1 and places[0].count(f) == 1 and real[0] == f


def _group(factor: str) -> str:
    """The name of a factor in the rule's text: those of one `...` share it."""
    return factor.rpartition(".")[0] if factor.startswith("...") else factor
