"""The Python of the README and of the docs runs as it stands, in one process from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_programs():
    code = blocks("README.md")
    assert len(code) >= 2
    assert "func @main" in run("\n".join(code[:2]))  # the others name files and layouts of the reader's


def test_custom_rules():
    assert "reduce_scatter over model" in run("\n".join(blocks("docs/custom_rules.md")))


def test_what_the_readme_shows_of_spmd_dump():
    (shown,) = re.findall(r"```\n(\$ spmd-dump.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    commands = re.findall(r"^\$ spmd-dump (.*?)\n(.*?)(?=^\$|\Z)", shown, re.DOTALL | re.MULTILINE)
    assert len(commands) == 2
    for arguments, output in commands:
        done = subprocess.run(
            [sys.executable, "-m", "spmd_compiler.tools.dump", *arguments.split()],
            cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
        for line in output.strip().splitlines():
            assert line.strip() == "..." or " ".join(line.split()) in printed


def test_files_that_the_docs_name_are_there():
    """The last column of each table of `search.md`, the first of those of `optimize.md`."""
    named: list[str] = []
    for page, column in (("search.md", -2), ("optimize.md", 1)):
        rows = re.findall(r"^\|.*\|$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        named += [name for row in rows for name in re.findall(r"`([\w./]+)`", row.split("|")[column])]
    files = [
        path.relative_to(ROOT / "spmd_compiler").with_suffix("")
        for path in ROOT.glob("spmd_compiler/**/*.py")
    ]
    modules = {part for path in files for part in (path.name, "/".join(path.parts[-2:]))}
    assert len(named) > 40
    for name in named:
        assert name in modules | {"passes/", "join_barriers", "propagate.open"}, name
