"""Images of digits: scikit-learn's, which ship in its wheel, and MNIST from its four files on disk."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Images(NamedTuple):
    """Training and test data: images f32[n, features] in [0, 1], labels i32[n]."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    @property
    def features(self) -> int:
        return self.x.shape[1]


def load_digits(test: int = 360, seed: int = 0) -> Images:
    """scikit-learn's 1,797 images of 8 x 8 pixels, split at random."""
    from sklearn import datasets

    digits = datasets.load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    x = (digits.data[order] / 16).astype(np.float32)
    y = digits.target[order].astype(np.int32)
    return Images(x[test:], y[test:], x[:test], y[:test])


def load_mnist(folder: str | Path) -> Images:
    """MNIST's 70,000 images of 28 x 28 pixels from `train-images-idx3-ubyte` and so on, gzipped or not."""
    x, y, test_x, test_y = (
        _read_idx(Path(folder), name)
        for name in (
            "train-images-idx3-ubyte",
            "train-labels-idx1-ubyte",
            "t10k-images-idx3-ubyte",
            "t10k-labels-idx1-ubyte",
        )
    )

    def images(a: np.ndarray) -> np.ndarray:
        return (a.reshape(len(a), -1) / 255).astype(np.float32)

    return Images(images(x), y.astype(np.int32), images(test_x), test_y.astype(np.int32))


def _read_idx(folder: Path, name: str) -> np.ndarray:
    """An IDX file: two zero bytes, the type (8: bytes), the rank, the sizes in big endian, the data."""
    file = next((f for f in (folder / name, folder / f"{name}.gz") if f.exists()), None)
    if file is None:
        raise SystemExit(
            f"{folder} has no {name} (or {name}.gz): give the folder that holds MNIST's four files"
        )
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise SystemExit(f"{file} is no IDX file of bytes")
    shape = np.frombuffer(data, ">u4", data[3], 4)
    pixels = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if pixels.size != shape.prod():
        raise SystemExit(f"{file} is cut off: {pixels.size} bytes of {shape.prod()}")
    return pixels.reshape(shape)
