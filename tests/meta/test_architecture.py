"""The walks of ARCHITECTURE.md name existing code; tests/agent/test_walks.py checks their order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python/dra_agent"
STEP = re.compile(r"`([\w/]+\.py):([\w.]+)`")
STEPS = sorted(set(STEP.findall((ROOT / "ARCHITECTURE.md").read_text())))


def names_of(file: Path) -> set[str]:
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    names.add(f"{node.name}.{member.name}")
    return names


def test_walks_have_steps() -> None:
    assert len(STEPS) > 35


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_each_step_exists(path: str, name: str) -> None:
    assert (PACKAGE / path).is_file(), f"ARCHITECTURE.md: {path} does not exist"
    assert name in names_of(PACKAGE / path), f"ARCHITECTURE.md: {path} has no {name}"


def test_every_folder_of_the_package_is_described() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    folders = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert {folder for folder in folders if f"`{folder}/`" not in page} == set()
