"""This compiler beside XLA's partitioners on one program, from the rows of a sweep: who sends how much, and who less."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from spmd_compiler.passes.hardware import PRESETS, Hardware

RIVALS = {"shardy": "Shardy", "gspmd": "GSPMD"}
SLACK = 1.001, 16.0  # a factor, and bytes: less is no difference
QUIET = 64.0  # bytes that stand for none in a ratio
ACCELERATORS = ("h100-nvlink", "h100-ib", "tpu-v5p")  # models by which times are estimated
ByPart = dict[str, dict[str, Any]]


def sent(by_part: ByPart, part: str) -> float | None:
    """Bytes per device and call; None if it did not compile. XLA's partitioners get the credit of a reduce-scatter for
    an all-reduce that is only sliced; this compiler says reduce-scatter itself."""
    row = by_part.get(part, {})
    if row.get("status") != "ok":
        return None
    return row["bytes"] if part == "spmd" else row["rs_bytes"]


def best_rival(by_part: ByPart) -> tuple[str, float] | None:
    """The one of XLA's partitioners that sends least, and how much; None if neither compiled."""
    found = [(p, x) for p in RIVALS if (x := sent(by_part, p)) is not None]
    return min(found, key=lambda pair: pair[1]) if found else None


def is_loss(by_part: ByPart) -> bool:
    """Whether one of XLA's partitioners sends less than this compiler, or this one failed where those did not."""
    ours, rival = sent(by_part, "spmd"), best_rival(by_part)
    if rival is None:
        return False
    return ours is None or ours > rival[1] * SLACK[0] + SLACK[1]


def seconds(by_part: ByPart, part: str, hardware: Hardware) -> float | None:
    """A rough time of one call: matrix products, bytes and messages, one after the other."""
    count = sent(by_part, part)
    if count is None:
        return None
    row = by_part[part]
    messages = row["executed"] * hardware.link_latency
    return row["dot_flops"] / hardware.peak("f32") + count / hardware.link_bandwidth + messages


def time_ratio(by_part: ByPart) -> float | None:
    """The estimated time of ours over that of the rival that sends least, on the accelerator where it compares worst."""
    rival = best_rival(by_part)
    if rival is None or sent(by_part, "spmd") is None:
        return None
    ratios: list[float] = []
    for name in ACCELERATORS:
        ours, other = (seconds(by_part, part, PRESETS[name]) for part in ("spmd", rival[0]))
        if ours and other:
            ratios.append(ours / other)
    return max(ratios, default=None)


def ratio(by_part: ByPart) -> float | None:
    """Ours over the best rival's; None where nobody sends anything or someone failed."""
    ours, rival = sent(by_part, "spmd"), best_rival(by_part)
    if ours is None or rival is None or ours == rival[1] == 0:
        return None
    return max(ours, QUIET) / max(rival[1], QUIET)


def more_collectives(by_part: ByPart) -> bool:
    """Whether this compiler runs more collectives than Shardy without sending less than that does: in the program whose
    collectives are counted, so without the credit of reduce-scatters that are not in it."""
    ours, shardy = sent(by_part, "spmd"), sent(by_part, "shardy")
    if ours is None or shardy is None or ours < by_part["shardy"]["bytes"] / SLACK[0] - SLACK[1]:
        return False
    return by_part["spmd"]["executed"] > by_part["shardy"]["executed"]


def work_ratio(by_part: ByPart) -> float | None:
    """Operations of matrix products and convolutions, ours over Shardy's; None where there are none, or someone failed."""
    return _over_shardy(by_part, lambda row: row["dot_flops"])


def memory_ratio(by_part: ByPart) -> float | None:
    """`allocated` bytes, ours over Shardy's; None where they are not known, or someone failed."""
    return _over_shardy(by_part, lambda row: allocated(row["memory"]))


def allocated(memory: dict[str, int]) -> int:
    """Bytes on a device while a program runs, from what XLA tells of its memory (`hlo.memory`); 0 if that is nothing."""
    return sum(memory.get(x, 0) for x in ("args", "output", "temp")) - memory.get("alias", 0)


def _over_shardy(by_part: ByPart, measure: Callable[[dict[str, Any]], float]) -> float | None:
    rows = [by_part.get(part, {}) for part in ("spmd", "shardy")]
    if any(row.get("status") != "ok" for row in rows):
        return None
    ours, shardy = map(measure, rows)
    return ours / shardy if ours and shardy else None


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def rewritten(by_part: ByPart) -> str:
    """What XLA made of the collectives that this compiler emitted, where that is not what it was given; else ''. Several
    that became one are no difference."""
    row = by_part.get("spmd", {})
    if row.get("status") != "ok":
        return ""
    changes = []
    for kind in sorted({*row["emitted"], *row["by_kind"]}):
        before, after = (row[x].get(kind, {}).get("bytes", 0.0) for x in ("emitted", "by_kind"))
        if abs(before - after) > max(before, after) * (SLACK[0] - 1) + SLACK[1]:
            changes.append(f"{kind} {before:,.0f} → {after:,.0f}")
    return ", ".join(changes)


def cell(by_part: ByPart, part: str) -> str:
    """Bytes and the number of collectives in the HLO, or why there are none."""
    row = by_part.get(part)
    if row is None:
        return ""
    return row["status"] if row["status"] != "ok" else f"{sent(by_part, part):,.0f} ({row['count']})"
