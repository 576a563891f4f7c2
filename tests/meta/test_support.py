"""The support page names a test for each cell of its matrix, and every test and file that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/support.md"
EVIDENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PATH = re.compile(r"`((?:tests|benchmarks|deploy|docs|examples)/[\w./-]+)(?:::(\w+))?`")
SHOWN = re.compile(r"\b(?:simulated|tested)\b", re.IGNORECASE)


def table(first: str) -> list[list[str]]:
    """Return the rows of the table whose heading begins with this cell; the heading is the first row."""
    for block in PAGE.read_text().split("\n\n"):
        if block.startswith(f"| {first} |"):
            rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.strip().splitlines()]
            return [rows[0], *rows[2:]]
    raise AssertionError(f"no table begins with the column {first}")


def cells() -> dict[tuple[str, str], str]:
    """Return the cells of the matrix of devices by family and capability."""
    (_, *capabilities), *rows = table("family | inventory and attributes")
    return {
        (family, capability): cell for family, *row in rows for capability, cell in zip(capabilities, row, strict=True)
    }


def evidence() -> dict[tuple[str, str], str]:
    _, *rows = table("family | capability")
    found = {(family, capability): tests for family, capability, tests in rows}
    assert len(found) == len(rows), "a cell has two rows"
    return found


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_each_cell_that_was_shown_has_a_test_and_no_other_cell() -> None:
    shown = {key for key, cell in cells().items() if SHOWN.search(cell)}
    assert len(shown) > 20 and shown == evidence().keys()
    without = [key for key, tests in evidence().items() if not EVIDENCE.search(tests)]
    assert not without, "a row names no test"


def test_each_named_test_and_path_exists() -> None:
    named = PATH.findall(PAGE.read_text())
    missing = [path for path, _ in named if not (ROOT / path).exists()]
    missing += [f"{path}::{name}" for path, name in named if name and name not in functions(ROOT / path)]
    assert len(named) > 50 and not missing


def test_each_named_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", PAGE.read_text()))
    assert named and named <= targets, named - targets


def test_the_readme_claims_no_more_than_the_matrix() -> None:
    """A cell of the README that states `no source` or nothing stands for cells of the page without a test."""
    readme = (ROOT / "README.md").read_text()
    (row,) = [line for line in readme.splitlines() if line.startswith("| FPGAs")]
    health = [cell for (family, capability), cell in cells().items() if "FPGA" in family and capability == "health"]
    assert row.endswith("| no source |") and all(cell.startswith("no source") for cell in health)


def test_each_page_has_the_same_versions_of_kubernetes_as_the_matrix() -> None:
    """A version that was tried in part is not stated as tried or as not tried elsewhere."""
    _, *rows = table("platform")
    states = {
        match[1]: state for platform, state in rows if (match := re.match(r"Kubernetes (1\.\d+)", platform)) is not None
    }
    assert {"1.34", "1.35", "1.36", "1.37"} <= states.keys()
    not_tried = {version for version, state in states.items() if state.startswith("not tried")}
    readme = " ".join(line.lstrip("> ") for line in (ROOT / "README.md").read_text().splitlines())
    groups = re.findall(r"((?:1\.\d\d(?: and |, )?)+) \(([^)]*)\)", readme.partition("Status: alpha")[2])
    named = {version: words for versions, words in groups for version in re.findall(r"1\.\d\d", versions)}
    assert named.keys() == states.keys()
    assert {version for version, words in named.items() if words == "not tried"} == not_tried
    assert {version for version, words in named.items() if words == "tested"} == {
        version for version, state in states.items() if state.startswith("tested on a real")
    }
    page = (ROOT / "docs/reference/kubernetes-api.md").read_text()
    lines = re.findall(r"^\| Kubernetes (1\..*) \| \[not tried\]", page, re.MULTILINE)
    assert {version for line in lines for version in re.findall(r"1\.\d\d", line)} == not_tried
