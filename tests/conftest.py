"""8 virtual CPU devices, before JAX starts; and the option to run a share of the cases of each test."""

from collections import Counter

import spmd_compiler as spmd

spmd.configure_virtual_cpus(8)


def pytest_addoption(parser):
    parser.addoption(
        "--every", type=int, default=1, help="of the cases of each test, every n-th, beginning with the first"
    )


def pytest_collection_modifyitems(config, items):
    seen, kept, left = Counter(), [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        (left if seen[test] % config.getoption("every") else kept).append(item)
        seen[test] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left)
