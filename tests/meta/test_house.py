"""Rules of the house that no linter knows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_IDEA = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def files(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so nobody knows which files are the product's")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def sources() -> list[Path]:
    listed = files("python/*.py", "rust/*.rs", "benchmarks/*", "demo/*")
    return [path for path in listed if path.is_file() and "tests" not in path.relative_to(ROOT).parts]


def test_a_file_is_named_after_its_idea() -> None:
    nameless = [str(path.relative_to(ROOT)) for path in sources() if NO_IDEA & set(path.relative_to(ROOT).parts)]
    nameless += [str(path.relative_to(ROOT)) for path in sources() if path.stem in NO_IDEA]
    assert not nameless


def test_unsafe_stays_in_its_one_place() -> None:
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in files("rust/*.rs")
        if "nvml-fake" not in path.parts and ("unsafe {" in path.read_text() or "unsafe fn" in path.read_text())
    ]
    assert not elsewhere, "only the stand-in for NVML has a C ABI"


def test_every_page_is_reachable_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = [path for path in files("docs/*.md") if path.parent == ROOT / "docs"]
    missing = [path.name for path in pages if f"docs/{path.name}" not in readme]
    assert pages and not missing, f"README.md names no such page: {missing}"


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} → {target}"
        for page in files("*.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken, broken


def test_a_decision_has_a_number_of_its_own() -> None:
    numbers = [path.name.partition("-")[0] for path in files("docs/adr/*.md")]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    assert numbers and not twice, f"several decisions in docs/adr are numbered {twice}"


def test_nothing_waits_in_a_way_that_loses_a_cancellation() -> None:
    # Python 3.11's wait_for returns instead of raising CancelledError where what it waits for comes at that moment:
    # a task that is told to stop goes on, and whoever waits for its end waits for ever (python/cpython#86296).
    lossy = [str(path.relative_to(ROOT)) for path in files("python/*.py") if "asyncio.wait_for(" in path.read_text()]
    assert not lossy, "wait inside `async with asyncio.timeout(...)`"
