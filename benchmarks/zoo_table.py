"""The zoo's results as tables: rich on a terminal, markdown and JSON on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import zoo
from benchmarks.compare import memory_ratio
from benchmarks.workers import Rows

BASELINE: dict[str, dict[str, int]] = json.loads((Path(zoo.__file__).parent / "baseline.json").read_text())
_COLUMNS = {
    "spmd": "ours",
    "shardy": "Shardy",
    "gspmd": "GSPMD",
}


def write(rows: Rows, parts: list[str], folder: Path, jax_version: str) -> list[Path]:
    """Writes `zoo-<version>.md` and `.json`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"zoo-{jax_version}"
    markdown, data = stem.with_name(stem.name + ".md"), stem.with_name(stem.name + ".json")
    head, body = _cells(rows, parts)
    lines = [
        f"# The zoo on JAX {jax_version}",
        "",
        "8 virtual CPU devices, all partitioners in one process. A partitioner's cell: bytes that the busiest "
        "device sends per call (ring model, loops multiplied), an all-reduce of which only a slice is used "
        "counted as a reduce-scatter; in brackets the collectives in the optimized HLO. `W`: XLA warned of "
        "an involuntary full rematerialization. `!`: differs from one device. `good`: a hand-made program. "
        "`XLA`: the best of Shardy and GSPMD on CPU, H100 and TPU v5e, the last two compiled ahead of time. "
        "Ratios are ours over Shardy's; steps are taken in turn; memory is that of arguments, results and temporaries.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "|".join("---" if i < 2 else "---:" for i in range(len(head))) + "|",
        *("| " + " | ".join(cells) + " |" for cells in body),
        "",
        *(f"* {line}" for line in summary(rows)),
    ]
    markdown.write_text("\n".join(lines) + "\n")
    data.write_text(json.dumps(rows, indent=1) + "\n")
    return [markdown, data]


def show(rows: Rows, parts: list[str], console: Console) -> None:
    head, body = _cells(rows, parts)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for cells in body:
        table.add_row(*cells, style="red" if any("!" in c or "error" in c for c in cells) else None)
    console.print(table)
    for line in summary(rows):
        console.print(line)
    for name, by_part in rows.items():
        for part, row in by_part.items():
            if row["status"] != "ok":
                console.print(f"{name} {part}: {row['status']}: {row.get('error', '')[:300]}", markup=False)


def summary(rows: Rows) -> list[str]:
    lines = []
    for part, title in _COLUMNS.items():
        done = [by_part[part] for by_part in rows.values() if part in by_part]
        if done:
            right = sum(bool(r.get("right")) for r in done)
            sent = sum(r["rs_bytes"] for r in done if r["status"] == "ok")
            lines.append(f"{title}: {right} of {len(done)} programs right, {sent:,.0f} bytes in all")
    ours = {n: r["spmd"] for n, r in rows.items() if r.get("spmd", {}).get("status") == "ok"}
    for part in ("shardy", "gspmd"):
        both = [(r, rows[n][part]) for n, r in ours.items() if rows[n].get(part, {}).get("status") == "ok"]
        if both:
            more = sum(a["rs_bytes"] > b["rs_bytes"] * 1.001 + 16 for a, b in both)
            less = sum(a["rs_bytes"] < b["rs_bytes"] * 0.999 - 16 for a, b in both)
            line = f"against {_COLUMNS[part]}: less traffic in {less}, more in {more} of {len(both)}"
            steps = [b["spmd_step_ratio"] for _, b in both if "spmd_step_ratio" in b]
            if steps:
                compiles = [_compile_s(a) / _compile_s(b) for a, b in both]
                line += f"; step time x {_mean(steps):.2f}, compile time x {_mean(compiles):.2f}"
                alike = [(a["lower_s"] + a["default_compile_s"]) / _compile_s(b) for a, b in both]
                line += f", x {_mean(alike):.2f} with XLA's default options for both"
                # what `memory_ratio` calls Shardy is the one that ours is compared with here
                memory = [x for a, b in both if (x := memory_ratio({"spmd": a, "shardy": b})) is not None]
                line += f", memory x {_mean(memory):.2f} (geometric means)"
            lines.append(line)
    return lines


def _cells(rows: Rows, parts: list[str]) -> tuple[list[str], list[list[str]]]:
    head = ["program", "mesh", "good", "XLA", *(_COLUMNS[p] for p in parts)]
    head += ["step", "compile", "memory"] if {"spmd", "shardy"} <= set(parts) else []
    body = []
    for name, by_part in rows.items():
        case = zoo.CASES[name]
        good = case.build().good
        best = min(BASELINE.get(name, {}).values(), default=None)
        cells = [name, " ".join(f"{a}={s}" for a, s in case.mesh), f"{good:,.0f}"]
        cells.append("" if best is None else f"{best:,}")
        cells += [_part(by_part.get(part)) for part in parts]
        if "step" in head:
            cells += _ratios(by_part.get("spmd", {}), by_part.get("shardy", {}))
        body.append(cells)
    return head, body


def _part(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["status"] != "ok":
        return row["status"]
    flags = ("W" if row["rematerializations"] else "") + ("" if row["right"] else "!")
    return f"{row['rs_bytes']:,.0f} ({row['count']}){flags}"


def _ratios(ours: dict[str, Any], shardy: dict[str, Any]) -> list[str]:
    if ours.get("status") != "ok" or shardy.get("status") != "ok":
        return ["", "", ""]
    memory = memory_ratio({"spmd": ours, "shardy": shardy})
    return [
        f"{shardy['spmd_step_ratio']:.2f}" if "spmd_step_ratio" in shardy else "",
        f"{_compile_s(ours) / _compile_s(shardy):.2f}",
        "" if memory is None else f"{memory:.2f}",
    ]


def _compile_s(row: dict[str, Any]) -> float:
    """Seconds from the function to the executable."""
    return row["lower_s"] + row["compile_s"]


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))
