"""Each file is a module before and after one pass. `python -m tests.golden.programs` writes them anew: read the diff."""

import pytest

from spmd_compiler import ir
from spmd_compiler.ir.verify import verify

from .programs import AFTER, FOLDER, PASSES, PROGRAMS, plain

FILES = sorted(FOLDER.glob("*.spmd"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_pass(path):
    before, after = path.read_text().split(AFTER)
    module = ir.parse(before)
    verify(module)
    assert str(module) == before
    result = PASSES[path.stem.rpartition(".")[2]](module)
    verify(result)
    assert plain(str(result)) == after
    assert str(module) == before, "the pass changed its input"


def test_every_program_has_its_files():
    wanted = {f"{name}.{shown}" for name, (passes, *_) in PROGRAMS.items() for shown in passes.split()}
    assert {path.stem for path in FILES} == wanted
