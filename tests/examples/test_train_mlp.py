"""The example: its data, its schemes, and that spmd-dump can look at it."""

import gzip
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from spmd_compiler.tools.dump import main

EXAMPLES = Path(__file__).parents[2] / "examples"
pytest.importorskip("optax")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    import train_mlp

    return train_mlp


@pytest.mark.parametrize("scheme", range(3))
def test_a_step_of_each_scheme_equals_one_device(example, scheme):
    scheme = example.SCHEMES[scheme]
    data = example.load_digits()
    x, y = next(example.batches(data, 0))
    wanted, loss = jax.jit(example.step)(example.init_state(64), x, y)
    state = jax.tree.map(lambda a, s: jax.device_put(a, s.to_jax()), example.init_state(64), scheme.state)
    got, found = scheme.train_step()(state, x, y)
    np.testing.assert_allclose(found, loss, atol=example.TOLERANCE)
    for a, b, layout in zip(*map(jax.tree.leaves, (got, wanted, scheme.state)), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
        assert a.sharding.is_equivalent_to(layout.to_jax(), a.ndim)


def test_spmd_dump_shows_the_train_step(example, capsys):
    assert main([f"{EXAMPLES}/train_mlp.py:train_step", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["mesh"] == {"batch": 4, "model": 2}
    assert any(c["kind"] == "all_reduce" and "model" in c["axes"] for c in data["collectives"])
    assert any("train_mlp.py:" in c["source"] for c in data["collectives"])


def test_digits(example):
    data = example.load_digits()
    assert data.x.shape == (1437, 64)
    assert data.test_x.shape == (360, 64)
    assert set(np.unique(data.y)) == set(range(10))
    assert data.x.min() >= 0 and data.x.max() == 1


def idx(array):
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.tobytes()


def test_mnist_files(example, tmp_path):
    images = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    labels = np.array([3, 7], np.uint8)
    for name in ("train", "t10k"):
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    data = example.load_mnist(tmp_path)
    np.testing.assert_allclose(data.x, images.reshape(2, 16) / 255, rtol=1e-6)
    assert data.test_y.tolist() == [3, 7]
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(SystemExit, match="no t10k-labels"):
        example.load_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(labels)[:-1])
    with pytest.raises(SystemExit, match="cut off"):
        example.load_mnist(tmp_path)
