"""spmd-dump on each kind of target, and what it says to mistakes."""

import json

import pytest

from spmd_compiler import ir
from spmd_compiler.tools.dump import main

PROGRAM = """
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

mesh = spmd.create_mesh([("x", 4), ("y", 2)])


@spmd.spmd_jit(mesh=mesh, in_layouts=(P("x", None), P(None, "y")))
def step(x, w):
    return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0].sum(0)


def step_args():
    return np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)


def plain(x):
    return x
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


@pytest.fixture
def dump(capsys):
    def run(*argv):
        status = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        assert status == (1 if err else 0), err
        return out or err

    return run


def test_stages(program, dump):
    for stage in ("import", "propagate", "expand", "optimize"):
        module = ir.parse(dump(f"{program}:step", "--stage", stage))
        assert module.attrs["stage"] == stage
        assert dict(module.mesh.axes) == {"x": 4, "y": 2}
    assert dump(f"{program}:step") == dump(f"{program}:step", "--stage", "optimize")
    assert "stablehlo.all_gather" in dump(f"{program}:step", "--stage", "stablehlo")
    assert "HloModule" in dump(f"{program}:step", "--stage", "hlo")


def test_collectives(program, dump):
    table = dump(f"{program}:step", "--comms")
    row = next(line for line in table.splitlines() if "all_gather" in line).split()
    assert row[:5] == ["all_gather", "y", "32", "3", "program.py:14"]
    data = json.loads(dump(f"{program}:step", "--json"))
    assert data["in_layouts"] == ["{x,-}", "{-,y}"]
    assert data["comm_bytes"] == sum(c["bytes_per_device"] * c["trips"] for c in data["collectives"])
    assert [c["kind"] for c in data["collectives"]].count("all_gather") == 1
    assert "text" not in data
    assert json.loads(dump(f"{program}:step", "--json", "--stage", "expand"))["text"].startswith("mesh {x=4")


def test_stage_files_are_read_back(program, dump, tmp_path):
    file = tmp_path / "propagated.spmd"
    file.write_text(dump(f"{program}:step", "--stage", "propagate"))
    assert dump(file) == file.read_text()
    assert dump(file, "--stage", "optimize") == dump(f"{program}:step", "--stage", "optimize")
    assert dump(file, "--comms") == dump(f"{program}:step", "--comms")
    assert "'import' comes before" in dump(file, "--stage", "import")
    assert "stage file" in dump(file, "--stage", "hlo")


@pytest.mark.parametrize("given", ["import", "propagate", "expand"])
def test_a_stage_file_compiles_like_the_program(given, program, dump, tmp_path):
    file = tmp_path / "given.spmd"
    file.write_text(dump(f"{program}:step", "--stage", given))
    for stage in ("expand", "optimize"):
        assert dump(file, "--stage", stage) == dump(f"{program}:step", "--stage", stage)


def test_stablehlo_files(dump, tmp_path):
    file = tmp_path / "program.mlir"
    file.write_text("""module {
      sdy.mesh @mesh = <["data"=64]>
      func.func @main(%x: tensor<64x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4xf32> {
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
            : (tensor<64x4xf32>, tensor<f32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>
      }
    }""")
    data = json.loads(dump(file, "--json"))
    assert data["mesh"] == {"data": 64}
    assert data["collectives"][0]["axes"] == ["data"]


def test_why(program, dump):
    text = dump(f"{program}:step", "--stage", "propagate")
    name = next(line for line in text.splitlines() if "= tanh(" in line).split(":")[0].strip()
    told = dump(f"{program}:step", "--why", name)
    assert "x: on dim 0" in told
    assert "y: on dim 1" in told
    assert "%w: f32[8,8] {-,y}" in told
    assert "argument %w: the layout given or chosen for it" in told
    assert "no value is called %nope" in dump(f"{program}:step", "--why", "%nope")


def test_why_names_the_result_that_wants_it(tmp_path, dump):
    file = tmp_path / "wish.py"
    file.write_text(
        """
import jax, jax.numpy as jnp, spmd_compiler as spmd
mesh = spmd.create_mesh({"x": 4}, abstract=True)
step = spmd.spmd_jit(lambda w: jnp.cumsum(w, 1) @ w, mesh=mesh, out_layouts=spmd.Layout(["x", None], mesh))
step_args = (jax.ShapeDtypeStruct((8, 8), jnp.float32),)
"""
    )
    text = dump(f"{file}:step", "--stage", "propagate")
    name = next(line for line in text.splitlines() if "= dot_general(" in line).split(":")[0].strip()
    assert "result 0 leaves so" in dump(f"{file}:step", "--why", name)


def test_page(program, dump, tmp_path):
    page = tmp_path / "page.html"
    assert "page.html" in dump(f"{program}:step", "--html", page)
    text = page.read_text()
    assert "all_gather" in text
    assert "<summary>propagate</summary>" in text
    assert "src=" not in text


@pytest.mark.parametrize(
    ("suffix", "says"),
    [
        (":nothing", "has no 'nothing'; it has step"),
        (":plain", "wrap the function in spmd.spmd_jit"),
        ("", "FUNCTION; it has step"),
    ],
)
def test_mistakes_in_the_target(program, dump, suffix, says):
    assert says in dump(f"{program}{suffix}")


def test_missing_things(program, dump, tmp_path):
    assert "there is no file" in dump(tmp_path / "nope.mlir")
    assert "there is no file" in dump(f"{tmp_path}/nope.py:f")
    assert "there is no module no_such_package.module" in dump("no_such_package.module:f")
    program.write_text(PROGRAM.replace("step_args", "other"))
    assert "define step_args()" in dump(f"{program}:step")
    bad = tmp_path / "bad.mlir"
    bad.write_text("func @x")
    assert "line 1, column 1" in dump(bad)
    stage = tmp_path / "bad.spmd"
    stage.write_text("mesh {x=4}\nfunc @main() -> () {\n  return\n}\n")
    assert "does not say which stage" in dump(stage)
