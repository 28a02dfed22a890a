"""8 virtual CPU devices, before JAX starts; generated examples may take their time; and the option to run a share of the cases of each
test."""

from collections import Counter

from hypothesis import settings

import spmd_compiler as spmd
from tests import share

spmd.configure_virtual_cpus(8)
settings.register_profile("timeless", deadline=None)
settings.load_profile("timeless")


def pytest_addoption(parser):
    parser.addoption(
        "--every",
        type=int,
        default=1,
        help="run an n-th of the cases, and of the generated examples, of each test, and half of the tests of one case",
    )


def pytest_configure(config):
    share.every = config.getoption("every")


def pytest_collection_modifyitems(config, items):
    """Keeps the first case of each test, and of every n after it one, each time another one: parameters come in periods. Tests of
    one case are reckoned as one test, of which half stay."""
    names = [item.nodeid.partition("[")[0] for item in items]
    cases, seen, kept, left = Counter(names), Counter(), [], []
    for item, name in zip(items, names, strict=True):
        test, every = (name, share.every) if cases[name] > 1 else ("", min(2, share.every))
        turn, place = divmod(seen[test], every)
        (kept if place == turn % every else left).append(item)
        seen[test] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left)
