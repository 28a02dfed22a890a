"""A fixed share of the long sweeps, `make conformance` and `make zoo`, for every run of the tests."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from benchmarks import hlo, zoo
from benchmarks.conformance import load_cases, sweep
from benchmarks.conformance_spmd import spmd_check
from benchmarks.zoo_compile import mesh_of, partitioned
from tests import share

SLACK = 1.05  # of the bytes that a good program sends


def test_harnesses():
    count = 48 // share.every
    report = sweep(load_cases(limit=count, seed=7), lambda case: spmd_check(case, seed=0))
    assert not report.failures
    assert (
        sum(n for status, n in report.counts.items() if status.startswith("same result")) > count * 100 / 120
    )


@pytest.mark.parametrize(
    "name",
    [
        "conv_spatial_fwd",
        "cumsum_sharded_dim",
        "dynamic_slice_sharded",
        "embed_xent_train",
        "fsdp_mlp_train",
        "grad_accum_dp_train",
        "kv_decode_heads",
        "lstm_dp_train",
        "mlp_megatron_train",
        "moe_top2_fwd",
        "reshard_row_to_col",
        "roll_by_1",
        "topk_sharded_dim",
    ],
)
def test_zoo(name):
    case = zoo.CASES[name]
    built = case.build()
    mesh = mesh_of(case.mesh, jax.devices())
    with zoo.hints_on(mesh):
        compiled = partitioned(built, mesh).lower(*built.args).compile()
    wanted = jax.tree.leaves(jax.jit(lambda *args: built.fn(*args))(*built.args))
    for got, want in zip(jax.tree.leaves(compiled(*built.args)), wanted, strict=True):
        want = np.asarray(want)
        np.testing.assert_allclose(got, want, rtol=0, atol=built.tol * np.abs(want).max(initial=1e-30))
    assert hlo.report(compiled, mesh=case.mesh)["bytes"] <= SLACK * built.good
