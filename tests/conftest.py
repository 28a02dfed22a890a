"""8 virtual CPU devices, before JAX starts; and the option to run a share of the cases of each test."""

from collections import Counter

import spmd_compiler as spmd
from tests import share

spmd.configure_virtual_cpus(8)


def pytest_addoption(parser):
    parser.addoption(
        "--every",
        type=int,
        default=1,
        help="run an n-th of the cases, and of the generated examples, of each test",
    )


def pytest_configure(config):
    share.every = config.getoption("every")


def pytest_collection_modifyitems(config, items):
    """Keeps the first case of each test, and of every n after it one, each time another one: parameters come in periods."""
    seen, kept, left = Counter(), [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        turn, place = divmod(seen[test], share.every)
        (kept if place == turn % share.every else left).append(item)
        seen[test] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left)
