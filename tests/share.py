"""Which share of the tests runs: all, or with `--every n` an n-th of the cases and of the generated examples of each."""

from typing import Any

from hypothesis import settings

every = 1


def examples(most: int, **others: Any) -> settings:
    """Settings of a test of so many generated examples, or the share of them that is asked for: two at least, since the first one
    that hypothesis generates is the simplest there is."""
    return settings(max_examples=max(min(2, most), most // every), deadline=None, **others)
