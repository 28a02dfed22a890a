"""spmd-dump: every stage of a program's compilation, what it sends, and why."""

from __future__ import annotations

import argparse
import html
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..cpus import configure_virtual_cpus
from ..errors import SpmdError
from ..passes.report import Collective
from .targets import IR_STAGES, STAGES, View, load
from .why import why

_TARGET = """file.py:function, package.module:function, a StableHLO .mlir file, or a stage file that this tool wrote.
A Python function is an spmd_jit object; its module says with which arguments to compile it by a function
<function>_args() or example_args(), which returns a tuple of arrays or jax.ShapeDtypeStruct."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status: 1 for a program that can't be compiled, 2 for a wrong command."""
    options = _parser().parse_args(argv)
    try:
        if options.devices:
            configure_virtual_cpus(options.devices)
        view = load(options.target)
        if options.html:
            Path(options.html).write_text(_page(view))
        for line in _output(view, options):
            _print(line)
    except BrokenPipeError:  # `spmd-dump ... | head`
        sys.stderr.close()
    except (SpmdError, OSError) as error:
        print(f"spmd-dump: error: {error}", file=sys.stderr)
        return 1
    return 0


def _output(view: View, options: argparse.Namespace) -> list[Any]:
    if options.why:
        return why(view.stage("propagate"), options.why)
    if options.json:
        return [json.dumps(_data(view, options), indent=1)]
    if options.comms:
        return [_comms(view.collectives())]
    if options.html and not options.stage:
        return [f"wrote {options.html}"]
    return [view.text(options.stage or view.given or "optimize").rstrip("\n")]


def _print(item: Any) -> None:
    """Rich on a terminal, plain text in a pipe."""
    if sys.stdout.isatty():
        Console().print(item, markup=False, soft_wrap=isinstance(item, str))
    elif isinstance(item, str):
        print(item)
    else:
        Console(width=240, no_color=True).print(item)


def _comms(found: list[Collective]) -> Table:
    total = sum(c.bytes_per_device * c.trips for c in found)
    table = Table(
        box=None, pad_edge=False, caption=f"{total:,.0f} bytes per device and call", caption_justify="left"
    )
    for name, justify in (
        ("kind", "left"),
        ("axes", "left"),
        ("bytes", "right"),
        ("trips", "right"),
        ("source", "left"),
        ("cause", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=name != "cause")  # pyright: ignore[reportArgumentType] - rich's Literal
    for c in found:
        source = c.source.rsplit("/", 1)[-1]
        table.add_row(c.kind, ".".join(c.axes), f"{c.bytes_per_device:,.0f}", str(c.trips), source, c.cause)
    return table


def _data(view: View, options: argparse.Namespace) -> dict[str, Any]:
    found = view.collectives()
    main = view.stage("propagate" if "propagate" in view.stages else view.given).main
    data: dict[str, Any] = {
        "target": view.name,
        "mesh": dict(view.stage("optimize").mesh.axes),
        "in_layouts": [str(v.layout) for v in main.body.args],
        "out_layouts": [str(v.layout) for v in main.body.returns],
        "comm_bytes": sum(c.bytes_per_device * c.trips for c in found),
        "collectives": [asdict(c) for c in found],
    }
    if options.stage:
        data |= {"stage": options.stage, "text": view.text(options.stage)}
    return data


def _page(view: View) -> str:
    """One page without references: the collectives, and every stage."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"
        for cells in (
            (c.kind, ".".join(c.axes), f"{c.bytes_per_device:,.0f}", c.trips, c.source, c.cause)
            for c in view.collectives()
        )
    )
    stages = "".join(
        f"<details><summary>{stage}</summary><pre>{html.escape(view.text(stage))}</pre></details>"
        for stage in (*IR_STAGES, "stablehlo")
        if stage in view.stages or stage == "stablehlo"
    )
    head = "".join(f"<th>{h}</th>" for h in ("kind", "axes", "bytes", "trips", "source", "cause"))
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(view.name)}</title>"
        "<style>body{font:14px sans-serif;margin:2em}td,th{text-align:left;padding:0 1em 0 0}"
        "pre{font-size:12px;overflow:auto}summary{cursor:pointer;font-weight:bold}</style>"
        f"<h1>{html.escape(view.name)}</h1><table><tr>{head}</tr>{rows}</table>{stages}\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("spmd-dump", description=__doc__)
    parser.add_argument("target", help=_TARGET)
    parser.add_argument("--stage", choices=STAGES, help="the stage to print (default: optimize)")
    parser.add_argument(
        "--comms", action="store_true", help="the collectives: kind, axes, bytes, trips, source line"
    )
    parser.add_argument("--why", metavar="%v", help="why a value of stage propagate has its layout")
    parser.add_argument("--html", metavar="FILE", help="write all of it as one page")
    parser.add_argument(
        "--json", action="store_true", help="layouts and collectives, with --stage also its text"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="run on N virtual CPU devices")
    return parser


if __name__ == "__main__":
    sys.exit(main())
