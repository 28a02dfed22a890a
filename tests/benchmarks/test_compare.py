"""Who sends less, judged from rows that are written out here."""

import pytest

from benchmarks import compare


def row(bytes_, credited=None, executed=1, **more):
    return {
        "status": "ok",
        "bytes": bytes_,
        "rs_bytes": bytes_ if credited is None else credited,
        "executed": executed,
        "count": 1,
        "dot_flops": 0.0,
        **more,
    }


FAILED = {"status": "error", "error": "…"}


def test_the_better_rival_counts_with_its_credit():
    by_part = {"spmd": row(600.0), "shardy": row(1000.0, 500.0), "gspmd": row(700.0)}
    assert compare.best_rival(by_part) == ("shardy", 500.0)
    assert compare.is_loss(by_part)
    assert compare.ratio(by_part) == pytest.approx(1.2)


def test_our_own_all_reduce_gets_no_credit():
    assert compare.sent({"spmd": row(1000.0, 500.0)}, "spmd") == 1000.0


def test_failures():
    assert compare.is_loss({"spmd": FAILED, "shardy": row(1.0), "gspmd": FAILED})
    assert not compare.is_loss({"spmd": row(1.0), "shardy": FAILED, "gspmd": FAILED})
    assert compare.ratio({"spmd": FAILED, "shardy": row(1.0)}) is None


def test_none_counts_as_64_bytes():
    assert compare.ratio({"spmd": row(0.0), "shardy": row(640.0)}) == pytest.approx(0.1)
    assert compare.ratio({"spmd": row(0.0), "shardy": row(0.0)}) is None


def test_more_collectives_are_excused_by_fewer_bytes():
    assert compare.more_collectives({"spmd": row(900.0, executed=2), "shardy": row(900.0)})
    assert not compare.more_collectives({"spmd": row(500.0, executed=2), "shardy": row(900.0)})
    assert not compare.more_collectives({"spmd": row(450.0, executed=2), "shardy": row(900.0, 450.0)})


def test_times_count_products_bytes_and_messages():
    lean = {"spmd": row(2e6, dot_flops=1e9), "shardy": row(1e6, dot_flops=8e9), "gspmd": row(3e6)}
    ratio = compare.time_ratio(lean)
    assert ratio == pytest.approx((1e9 / 67e12 + 2e6 / 50e9 + 1e-5) / (8e9 / 67e12 + 1e6 / 50e9 + 1e-5))
    assert compare.time_ratio({"spmd": row(1.0), "shardy": FAILED, "gspmd": FAILED}) is None
    assert compare.time_ratio({"spmd": row(0.0, executed=0), "shardy": row(0.0, executed=0)}) is None


def test_what_xla_rewrote_is_told_by_kind():
    emitted = {"all-reduce": {"bytes": 1000.0, "executed": 2}}
    same = {"all-reduce": {"bytes": 1000.0, "executed": 1, "count": 1}}
    other = {"reduce-scatter": {"bytes": 500.0, "executed": 1, "count": 1}}
    assert compare.rewritten({"spmd": row(1000.0, emitted=emitted, by_kind=same)}) == ""
    told = compare.rewritten({"spmd": row(500.0, emitted=emitted, by_kind=other)})
    assert told == "all-reduce 1,000 → 0, reduce-scatter 0 → 500"


def test_geometric_mean():
    assert compare.geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    assert compare.geometric_mean([]) == 1.0
