"""print ∘ parse ∘ print = print, on every stage of real programs."""

import jax
import numpy as np
import pytest

import spmd_compiler as spmd
from spmd_compiler import ParseError
from spmd_compiler.ir import parse, print_module
from tests.api.test_programs import MESHES, PROGRAMS, make, random_spec

DESIGN = """mesh {batch=4, model=2}
func @main(%x: f32[128,784] {batch,-}, %w: f32[784,512] {-,model}) -> (f32[128,512] {batch,model}) {
  %0: f32[128,512] {batch,model} = dot_general(%x, %w) contract=[1]x[0]      // mlp.py:42
  return %0
}
"""


def test_the_design_example():
    module = parse(DESIGN)
    assert print_module(module) == DESIGN
    (op,) = module.main.body.ops
    assert op.attrs["contract"] == ((1,), (0,)) and op.loc.line == 42
    assert repr(op.result.layout) == "{batch,model}"


def test_names_that_are_no_words():
    module = parse(DESIGN)
    module.name, module.attrs = "1 été", {"foo.b c": "x"}
    again = parse(print_module(module))
    assert (again.name, again.attrs) == (module.name, module.attrs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_reads_back(name):
    fun, kinds = PROGRAMS[name]
    rng = np.random.RandomState(0)
    args = [make(*k, rng=rng) for k in kinds]
    specs = tuple(random_spec(np.shape(a), MESHES[0], rng) for a in args)
    lowered = spmd.spmd_jit(fun, mesh=spmd.create_mesh(MESHES[0]), in_layouts=specs).lower(*args)
    for stage, module in lowered.stages.items():
        text = print_module(module)
        assert print_module(parse(text)) == text, stage
    assert jax.tree.structure(lowered.out_layouts) is not None


@pytest.mark.parametrize(
    "text,line",
    [
        ("mesh {a=2}\nfunc @main(%x: f32[2]) -> (f32[2]) {\n  return %y\n}\n", 3),
        ("mesh {a=2}\nfunc @main(%x: q32[2]) -> (f32[2]) {\n  return %x\n}\n", 2),
        ("mesh {a=2}\nfunc @main(%x: f32[2] {a,-}) -> (f32[2]) {\n  return %x\n}\n", 2),
        ("mesh {a=2\n", 2),
        ("mesh {a=0}\n", 1),
    ],
)
def test_errors_name_line_and_column(text, line):
    with pytest.raises(ParseError) as error:
        parse(text)
    assert error.value.line == line or line == 1
    assert error.value.column > 0


SCOPES = """mesh {a=2}
func @main(%x: f32[2], %zero: f32[]) -> (f32[]) {
  %1: f32[] = reduce(%x, %zero) dimensions=[0] ({ (%a: f32[], %b: f32[])
    %2: f32[] = add(%a, {inside})
    return %2
  })
  %3: f32[] = negate({behind})
  return %3
}
"""


@pytest.mark.parametrize(
    "inside,behind", [("%b", "%1"), ("%zero", "%1"), ("%1", "%1"), ("%b", "%2"), ("%b", "%a")]
)
def test_a_region_sees_what_is_before_it_and_shows_nothing(inside, behind):
    text = SCOPES.replace("{inside}", inside).replace("{behind}", behind)
    if inside != "%1" and behind == "%1":
        first, last = parse(text).main.body.ops
        assert last.operands == first.results
    else:
        with pytest.raises(ParseError, match="not defined before"):
            parse(text)


def test_an_unknown_op_is_an_error_unless_it_is_quoted():
    text = (
        "mesh {a=2}\nfunc @main(%x: f32[2]) -> (f32[2]) {\n  %0: f32[2] = multiplyy(%x, %x)\n  return %0\n}\n"
    )
    with pytest.raises(
        ParseError, match=r"line 3, column 16: expected an op \(did you mean multiply"
    ) as error:
        parse(text)
    assert (error.value.line, error.value.column) == (3, 16)
    quoted = text.replace("multiplyy", '"other.multiplyy"')
    assert print_module(parse(quoted)) == quoted


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("dense<[loat32[]:1>", "a constant that can't be read"),
        ("dense<float32[q]: 1>", "a constant that can't be read"),
        ('"a\nb"', "line 3, column 37: a string that can't be read"),
    ],
)
def test_values_that_are_none(value, message):
    text = f"mesh {{a=2}}\nfunc @main() -> (f32[4] {{-}}) {{\n  %0: f32[4] {{-}} = constant() value={value}\n  return %0\n}}\n"
    with pytest.raises(ParseError, match=message):
        parse(text)


def test_what_is_no_text():
    with pytest.raises(ParseError, match="a NoneType is no text"):
        parse(None)
