"""Who imports whom: tools, the API, passes, ir, never back; and passes need no JAX."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "spmd_compiler"
LAYERS = ("ir", "passes", "", "tools")  # the folders, each of which may import those before it


def names(path):
    """The modules that a file imports, wherever it does; those of the package as parts below it."""
    here = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield tuple(node.module.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = ("", *here[: len(here) - node.level + 1], *(node.module or "").split("."))
            for alias in node.names:
                full = tuple(filter(None, (*base, alias.name)))
                yield ("", *(full if is_module(full) else full[:-1]))


def is_module(parts):
    path = ROOT.joinpath(*parts)
    return path.with_suffix(".py").exists() or path.is_dir()


def layer(parts):
    return LAYERS.index(parts[0] if parts[0] in LAYERS else "")


FILES = {path: [*names(path)] for path in ROOT.rglob("*.py")}


def test_no_import_goes_back():
    for path, imported in FILES.items():
        here = layer(path.relative_to(ROOT).parts)
        for parts in imported:
            if parts[0] == "" and parts[1:] != ("errors",):
                assert layer(parts[1:]) <= here, (path, parts)


def test_passes_need_no_jax():
    """Nor does what they import."""
    found = {path for path in FILES if path.is_relative_to(ROOT / "passes")}
    wanted = [*found]
    assert len(found) > 100
    while wanted:
        for parts in FILES[wanted.pop()]:
            assert parts[0] not in ("jax", "jaxlib"), parts
            path = ROOT.joinpath(*parts[1:]).with_suffix(".py")
            if parts[0] == "" and path.exists() and path not in found:
                found.add(path)
                wanted.append(path)
    assert ROOT / "ir" / "scanner.py" in found
