"""Arrays here are small. So that they are exchanged as large ones are, a message costs next to nothing."""

import pytest

from spmd_compiler.passes import cost


@pytest.fixture(autouse=True, scope="package")
def cheap_messages():
    patch = pytest.MonkeyPatch()
    patch.setattr(cost, "USUAL", cost.Prices(message=1.0))
    yield
    patch.undo()
