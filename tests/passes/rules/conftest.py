"""Arrays here are small. So that they are exchanged as large ones are, a message costs next to nothing."""

import pytest

from spmd_compiler.passes import cost
from spmd_compiler.passes.rules import base, cumulative


@pytest.fixture(autouse=True, scope="package")
def cheap_messages():
    patch = pytest.MonkeyPatch()
    for module in (cost, base, cumulative):
        patch.setattr(module, "MESSAGE", 1.0)
    yield
    patch.undo()
