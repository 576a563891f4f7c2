"""Docstrings name errors and modules that exist, and pages modules: a renamed one is renamed there too."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import dra_agent

ROOT = Path(__file__).parents[2]
PACKAGE = Path(dra_agent.__file__).parent
PYTHON = PACKAGE.parent
TEXTS = {path: path.read_text() for path in sorted(PYTHON.rglob("*.py")) if "_pb2" not in path.name}
PAGES = {path: path.read_text() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])}
PLANNED = {"docs/contributing/add-a-vendor.md": re.compile(r"acme")}
"""Pages that name modules which a reader is to add."""
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
ERROR = re.compile(r"\b[A-Z]\w*Error\b")
MODULE = re.compile(r"`([\w/]+\.py)`")


def named(pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """Return what docstrings name, with the files."""
    found: dict[str, list[str]] = {}
    for path, text in TEXTS.items():
        for docstring in DOCSTRING.findall(text):
            for name in pattern.findall(docstring):
                found.setdefault(name, []).append(str(path.relative_to(PYTHON)))
    return found


def test_errors_exist() -> None:
    code = "".join(DOCSTRING.sub("", text) for text in TEXTS.values())
    known = {*ERROR.findall(code), *dir(builtins)}
    errors = named(ERROR)
    assert len(errors) > 20
    assert {name: files for name, files in errors.items() if name not in known} == {}


def test_modules_exist() -> None:
    modules = named(MODULE)
    assert modules
    paths = [f"/{path}" for path in TEXTS]
    missing = {
        name: files
        for name, files in modules.items()
        if not (ROOT / name).exists() and not any(path.endswith(f"/{name}") for path in paths)
    }
    assert missing == {}


def test_modules_of_pages_exist() -> None:
    folders = ("python", "tests", "benchmarks", "deploy", "demo", "examples", "fuzz")
    paths = [f"/{path.relative_to(ROOT)}" for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]
    names = [
        (str(path.relative_to(ROOT)), name)
        for path, text in PAGES.items()
        for name in re.findall(r"`([\w/]+\.py)[:`]", text)
    ]
    assert len(names) > 100
    assert [
        f"{page}: {name}"
        for page, name in names
        if not any(path.endswith(f"/{name}") for path in paths) and not (page in PLANNED and PLANNED[page].search(name))
    ] == []
