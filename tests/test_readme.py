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
