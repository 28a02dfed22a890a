"""A fixed share of `make zoo-variants`: generated programs are right, and send no more than under Shardy."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks import compare, zoo
from benchmarks.run_variants import report
from benchmarks.variants import ROUNDS, draw, kind_of, names
from benchmarks.variants.meshes import KINDS
from benchmarks.variants.worker import run_variant

SAMPLE = (
    "conv_spatial_fwd~0",
    "embed_xent_train~0",
    "embed_xent_train~cube0",
    "fused_qkv_split_fwd~0",
    "kv_decode_heads~0",
    "kv_decode_heads~six0",
    "mlp_megatron_train~0",
    "reshard_row_ab_to_2d~0",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_variants(name):
    by_part = {
        r["part"]: r
        for r in run_variant(name, ["spmd", "shardy"], 0, jax.devices())
        if r["status"] != "start"
    }
    assert by_part["spmd"]["right"]
    assert by_part["shardy"]["status"] == "ok"
    assert not compare.is_loss(by_part)


def test_names_go_around():
    some = names(len(zoo.CASES) + 2)
    assert some[0].endswith("~0") and some[-1].endswith("~1")
    every = names(len(zoo.CASES) * len(ROUNDS) + 1)
    assert len(set(every)) == len(every) == len(zoo.CASES) * len(ROUNDS)


@pytest.mark.parametrize("kind", [k for k in KINDS if k])
@pytest.mark.parametrize(
    "program", ["mlp_dp_fwd", "lm_2d_train_scan", "reshape_split_rows", "dtensor_spatial_train"]
)
def test_a_kind_is_a_choice_of_axis_sizes(program, kind):
    variant = draw(f"{program}~{kind}0", 1)
    assert tuple(size for _, size in variant.axes) in KINDS[kind]


@pytest.mark.parametrize(
    "name", [*names(40), *(f"{program}~{k}0" for k in KINDS for program in zoo.CASES)][::8]
)
def test_what_is_drawn_divides_and_can_be_drawn_again(name):
    variant = draw(name, 3)
    again = draw(name, 3)
    assert (variant.axes, variant.what) == (again.axes, again.what)
    sizes = dict(variant.axes)
    assert 2 <= math.prod(sizes.values()) <= (64 if kind_of(name) == "many" else 8)

    def check(spec, tree):
        for a in jax.tree.leaves(tree):
            used = [x for e in spec if e for x in (e if isinstance(e, tuple) else (e,))]
            assert len(used) == len(set(used)) and set(used) <= set(sizes)
            for e, n in zip(spec, np.shape(a), strict=False):
                assert (
                    n % math.prod(sizes[x] for x in (e if isinstance(e, tuple) else (e,) if e else ())) == 0
                )

    jax.tree.map(check, variant.built.in_specs, variant.built.args, is_leaf=lambda s: isinstance(s, P))


def test_the_report_lists_what_is_lost_wrong_or_failed():
    def row(bytes_, **more):
        return {
            "status": "ok",
            "bytes": bytes_,
            "rs_bytes": bytes_,
            "executed": 1,
            "count": 1,
            "dot_flops": 100.0,
            "memory": {"args": 10, "output": 10, "temp": 20},
            **more,
        }

    ours = {"axes": [("a", 8)], "what": "64→32", "right": True}
    rows = {
        "roll_by_1~0": {"spmd": row(900.0, **ours), "shardy": row(512.0), "gspmd": row(512.0)},
        "roll_by_1~1": {
            "spmd": row(512.0, **ours, dot_flops=150.0),
            "shardy": row(512.0),
            "gspmd": row(512.0),
        },
        "fft_dim_sharded~0": {
            "spmd": row(100.0, right=False, error_vs_one_device=0.5),
            "shardy": row(1000.0),
            "gspmd": {"status": "crash", "error": "the process ended with -6"},
        },
    }
    text = report(rows, 7)
    assert "3 generated variants (seed 7)" in text
    assert "* 3 compile; 2 of 3 compared are right" in text
    assert "* less traffic in 1, more in 1, of which 0 take less time by estimate" in text
    assert "| roll_by_1~0 | a=8 | 64→32 | 900 (1) | 512 (1) | 512 (1) | 1.76 | 1.00 |" in text
    assert "* memory x 1.00 Shardy's, above 1.1 in 0 of 3" in text
    assert "products x 1.14 Shardy's, above 1.1 in 1 of 3 where they can be counted" in text
    assert "| roll_by_1~1 | a=8 | 64→32 | 512 (1) | 512 (1) | 512 (1) | 1.00 | 1.50 |" in text
    assert "* fft_dim_sharded~0: off by 0.5" in text
    assert "* fft_dim_sharded~0 gspmd: crash: the process ended with -6" in text
