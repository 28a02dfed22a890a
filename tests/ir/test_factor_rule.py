"""Sharding rules as text, and what they say of values of given shapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_compiler.errors import ParseError
from spmd_compiler.ir.factor_rule import fit_rule
from spmd_compiler.ir.factor_text import RuleText, ValueText, parse_rule, parse_shardy_rule, print_rule

FACTORS = ["a", "b", "head", "k_2"]
values = st.builds(
    ValueText,
    st.sampled_from([None, 0, 1]),
    st.lists(
        st.one_of(
            st.sampled_from(FACTORS).map(lambda f: (f,)),
            st.lists(st.sampled_from(FACTORS), min_size=2, max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
)


@st.composite
def rules(draw):
    operands, results = (tuple(draw(st.lists(values, min_size=1, max_size=3))) for _ in range(2))
    names = sorted(frozenset().union(*(v.factors for v in (*operands, *results))))
    some = st.lists(st.sampled_from(names), unique=True) if names else st.just([])
    plain = [f for f in names if not f.startswith(".")]
    return RuleText(
        operands,
        results,
        {f: draw(st.integers(1, 99)) for f in plain if draw(st.booleans())},
        {f: draw(st.sampled_from(["sum", "max", "or"])) for f in draw(some)},
        frozenset(draw(some)),
        frozenset(draw(some)),
    )


@given(rules())
def test_print_and_parse(rule):
    assert parse_rule(print_rule(rule)) == rule


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("b i", 4, "expected '->'"),
        ("b -> (i)", 8, "at least two factors"),
        ("b -> b {c=2}", 9, "no value has a factor 'c'"),
        ("b -> b {b 2}", 11, "expected '='"),
        ("b -> b {b=avg}", 11, "not 'avg'"),
        ("b ... -> b", 3, "only at the beginning"),
        ("2b -> b", 1, "expected a factor"),
        ("(a (b c)) -> a", 4, r"expected a factor, not '\('"),
        ("b -> b }", 8, "expected a factor, not '}'"),
        ("b -> b {b=2} c", 14, "unexpected 'c'"),
        ("b -> b {...=sum}", 9, "no value has a factor '...'"),
    ],
)
def test_mistakes_have_a_column(text, column, message):
    with pytest.raises(ParseError, match=message) as caught:
        parse_rule(text)
    assert caught.value.column == column


def test_what_can_be_cut():
    """Each dim is cut by its major factor, if that is in every value that it has to be in."""

    def cutting(text, operands, results):
        rule = fit_rule(parse_rule(text), operands, results)
        return [rule.cutting(d) for d in (*rule.operands, *rule.results)]

    matmul = [(4, 6), (6, 5)], [(4, 5)]
    assert cutting("b i, i o -> b o {i=sum}", *matmul) == [(0, 1), (1, 2), (0, 2)]
    assert cutting("b i, i o -> b o", *matmul) == [(0, None), (None, 2), (0, 2)]  # no result has i
    assert cutting("b i, i o -> b o {b=whole, i=sum}", *matmul) == [(None, 1), (1, 2), (None, 2)]
    assert cutting("i i -> i", [(3, 3)], [(3,)]) == [(None, None), (None,)]  # the diagonal
    assert cutting("a -> a b", [(3,)], [(3, 4)]) == [(0,), (0, None)]  # only the call knows b
    assert cutting("a -> a", [(8,)], [(6,)]) == [(None,), (None,)]  # a has two sizes
    assert cutting("(a b) -> a b", [(6,)], [(2, 3)]) == [(0,), (0, None)]
    assert cutting("(a b) -> b", [(3,)], [(3,)]) == [(1,), (1,)]  # a is 1
    assert cutting("... d -> ...", [(2, 3, 4)], [(2, 3)]) == [(0, 1, None), (0, 1)]
    assert cutting("... d, d -> d {...=sum}", [(2, 3, 4), (4,)], [(4,)]) == [(0, 1, 2), (2,), (2,)]


@pytest.mark.parametrize(
    ("text", "operands", "results", "message"),
    [
        ("a -> a", [(3,), (3,)], [(3,)], "1 operands, but there are 2"),
        ("a b -> a", [(3,)], [(3,)], "operand 0 has 1 dims, but the rule 2"),
        ("... a -> ... a", [(3, 4)], [(2, 3, 4)], "'...' stands for 2 dims of result 0, but for 1 before"),
        ("... a -> ... a", [(3, 4)], [(2, 4)], "'...' of result 0 is 2 where it is 3 before"),
        ("(a b) -> (a b)", [(6,)], [(6,)], "sizes of a and b are not known"),
        ("(a b) a -> b", [(6, 4)], [(3,)], r"\(a b\) is a dim of size 6 of operand 0, not of 12"),
    ],
)
def test_rules_that_do_not_fit(text, operands, results, message):
    with pytest.raises(ValueError, match=message):
        fit_rule(parse_rule(text), operands, results)


def test_shardy():
    text = "#sdy.op_sharding_rule<([i, jz_1], [])->([i, j]) {i=8, j=2, z_1=4} reduction={z_1} permutation={i}, custom>"
    rule = parse_shardy_rule(text)
    assert print_rule(rule) == "i (j z_1),  -> i j {i=8, j=2, z_1=4, z_1=sum, i=permuted}"
    assert parse_rule(print_rule(rule)) == rule
    with pytest.raises(ParseError):
        parse_shardy_rule("#sdy.op_sharding_rule<([i])->[i]>")
