"""The benchmark of one GPU does its work on virtual CPUs as well."""

from benchmarks import gpu, gpu_worker


def test_rows_and_their_table(monkeypatch):
    monkeypatch.setattr(gpu_worker, "ROUNDS", 2)
    monkeypatch.setattr(gpu_worker, "STEPS", 1)
    found = [
        *gpu_worker.run_alone("reshard_a_to_b"),
        *gpu_worker.run_case("reshard_a_to_b", ["spmd", "shardy"]),
    ]
    by_part = {row["part"]: row for row in found if row["status"] != "start"}
    assert {row["status"] for row in by_part.values()} == {"ok"} and by_part[gpu_worker.ALONE]["right"]
    assert all(by_part[part]["step_ms"] > 0 for part in ("spmd", "shardy"))
    text = gpu.table({"reshard_a_to_b": by_part})
    assert "| reshard_a_to_b | right | 2,097,152 | 2,097,152 |" in text
    assert "alone: 1 of 1 right" in text


def test_large_programs_have_arguments_by_their_types():
    for name in gpu_worker.LARGE:
        axes, built = gpu_worker.program(name)
        assert dict(axes) and not built.good and built.args
