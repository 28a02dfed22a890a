"""What `make aot` writes, from rows that are written out here: the compilers for accelerators are extras."""

from benchmarks.aot import summary, table
from benchmarks.targets import TARGETS


def row(bytes_, count=1):
    kinds = {"all-reduce": {"bytes": bytes_, "executed": count, "count": count}}
    return {
        "status": "ok",
        "bytes": bytes_,
        "rs_bytes": bytes_,
        "executed": count,
        "count": count,
        "by_kind": kinds,
        "emitted": kinds,
    }


ROWS = {
    "mlp_megatron_fwd": {"spmd": row(917_504.0), "shardy": row(1_835_008.0), "gspmd": row(1_835_008.0)},
    "roll_by_1": {"spmd": row(1024.0), "shardy": row(512.0), "gspmd": row(512.0)},
    "topk_sharded_dim": {"spmd": row(28_672.0), "shardy": row(14_336.0), "gspmd": row(14_336.0)},
}


def test_summary():
    lines = summary(ROWS, "h100")
    assert "ours over the better of Shardy and GSPMD: x 1.26 (geometric mean of 3" in lines[0]
    assert lines[1] == "at most 1.05 x good: 2 of 3"
    assert lines[2] == "more bytes than Shardy or GSPMD: roll_by_1, topk_sharded_dim"
    assert any(line.startswith("topk_sharded_dim: ") and "indices" in line for line in lines)


def test_table():
    text = table(ROWS, "h100")
    assert "8 H100 of one host" in text
    assert "| roll_by_1 | a=8 | 512 | 1,024 (1) | 512 (1) | 512 (1) | 2.00 |  |" in text


def test_targets_name_what_to_install():
    assert {t.extra for t in TARGETS.values()} == {"tpu-aot", "gpu-aot"}
