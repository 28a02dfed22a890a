"""Where JAX's fused attention on GPUs (`jax.nn.dot_product_attention(…, implementation="cudnn")`) may be cut: batches and heads, of
all operands alike. The rule that it declares leaves its keys and values to themselves, and its `partition` callback, which
says what a device runs, refuses what is not cut alike."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from .ir.factor_text import WHOLE

_FORWARD, _BACKWARD = "_dot_product_attention_fwd_impl", "_dot_product_attention_bwd_impl"
_FIXED = 10  # query, key, value, bias, lengths (2), offsets (2), pages (2); what there is none of is empty
_MASK, _LAYOUT = 4, 5  # among the static arguments
_HEADS_FIRST = 1  # the layout (batch, heads, sequence, features); 0 is (batch, sequence, heads, features)

Shape = tuple[int, ...]


def fused_attention_rule(
    name: str, static_args: Sequence[Any], ins: Sequence[Any], outs: Sequence[Any]
) -> str | None:
    """The rule of a call of the function with that name; None for others, also for attention with operands of the user's own
    (which modify scores)."""
    backward = name == _BACKWARD
    if name not in (_FORWARD, _BACKWARD) or len(ins) != _FIXED + 3 * backward:
        return None
    mask, heads_first = getattr(static_args[_MASK], "name", ""), static_args[_LAYOUT] == _HEADS_FIRST
    rule = _Rule([tuple(x.shape) for x in ins], heads_first, mask == "ALIBI")
    return rule.text([tuple(x.shape) for x in outs], backward)


class _Rule:
    """Factors: `b` batches, `n` heads of keys. Whole are `g`, the heads of queries for each of these, `t` and `s`, the sequences of
    queries and keys, `h` and `v`, the features of keys and values, and `x…`, which one value has alone."""

    def __init__(self, ins: Sequence[Shape], heads_first: bool, numbered_heads: bool):
        self.ins, self.heads_first = ins, heads_first
        at = 1 if heads_first else 2
        self.batch, self.heads = ins[0][0], ins[0][at]
        self.sizes = {"g": self.heads // ins[1][at]}
        self.whole = ["g", "t", "s", "h", "v"]
        if any(math.prod(shape) for shape in ins[8:_FIXED]):
            self.whole.append("b")  # keys and values are pages, of any batch
        if numbered_heads:
            self.whole.append("n")  # the mask tells heads apart by their number

    def text(self, outs: Sequence[Shape], backward: bool) -> str:
        queries, made = self.rows("t", "(n g)", "h"), self.rows("t", "(n g)", "v")
        keys, values = self.rows("s", "n", "h"), self.rows("s", "n", "v")
        ins = [queries, keys, values, self.bias(self.ins[3]), *map(self.of_batches, self.ins[4:_FIXED])]
        if backward:
            ins += [self.softmax(self.ins[_FIXED]), made, made]
            results = [queries, keys, values, *map(self.bias, outs[3:])]
        else:
            results = [made, *map(self.softmax, outs[1:])]
        entries = [f"{f}={n}" for f, n in self.sizes.items()] + [f"{f}={WHOLE}" for f in self.whole]
        # the gradient of a bias for all batches or heads, which the callback sums
        entries += [f"{f}=sum" for f in "bn" if any(f not in re.findall(r"\w+", r) for r in results)]
        return f"{', '.join(ins)} -> {', '.join(results)} {{{', '.join(entries)}}}"

    def rows(self, sequence: str, heads: str, features: str) -> str:
        return " ".join(("b", *((heads, sequence) if self.heads_first else (sequence, heads)), features))

    def bias(self, shape: Shape) -> str:
        """One for each batch and head, or for all, and each pair of places."""
        if len(shape) != 4:
            return self.of_batches(shape)
        heads = "(n g)" if shape[1] == self.heads else self.alone()
        return f"{self.of_batches(shape[:1])} {heads} {self.alone()} {self.alone()}"

    def of_batches(self, shape: Shape) -> str:
        """What has a row for each batch, if it does."""
        return " ".join("b" if not d and n == self.batch else self.alone() for d, n in enumerate(shape))

    def softmax(self, shape: Shape) -> str:
        """What the forward pass leaves for the backward pass, of each of `m` sequences that a batch is packed of."""
        self.sizes["m"] = shape[0] // self.batch
        return "(b m) (n g) t"

    def alone(self) -> str:
        self.whole.append(f"x{len(self.whole)}")
        return self.whole[-1]
