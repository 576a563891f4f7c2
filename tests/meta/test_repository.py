"""Rules of this repository that no linter checks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def files(*patterns: str) -> list[Path]:
    tracked = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout, so the files of the product are unknown")
    return [ROOT / name for name in tracked.stdout.split("\0") if name and (ROOT / name).exists()]


def test_unsafe_code_is_limited_to_the_fake_nvml() -> None:
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in files("rust/*.rs")
        if "nvml-fake" not in path.parts and ("unsafe {" in path.read_text() or "unsafe fn" in path.read_text())
    ]
    assert not elsewhere, "only the fake NVML has a C ABI"


def linked_pages(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text())
    return {(page.parent / target).resolve() for target in targets} & set((ROOT / "docs").rglob("*.md"))


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, pending = set[Path](), linked_pages(ROOT / "README.md")
    while pending:
        reached |= pending
        pending = set().union(*(linked_pages(page) for page in pending)) - reached
    # A decision is linked where it matters; `docs/adr` lists them all.
    pages = {path for path in files("docs/*.md") if path.parent != ROOT / "docs/adr"}
    missing = sorted(str(path.relative_to(ROOT)) for path in pages - reached)
    assert pages and not missing, f"no link leads from README.md to {missing}"


def test_links_between_pages_resolve() -> None:
    broken = [
        f"{page.relative_to(ROOT)} → {target}"
        for page in files("*.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken, broken


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, on GitHub and on the site, for headings that are not repeated."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in re.findall(r"^#+ (.*)", prose, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in headings}


def test_links_to_headings_resolve() -> None:
    broken = [
        f"{page.relative_to(ROOT)} → {target}#{anchor}"
        for page in files("*.md")
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
        if (target or page.name).endswith(".md") and anchor not in anchors(page.parent / (target or page.name))
    ]
    assert not broken, broken


def test_the_index_of_examples_has_every_folder() -> None:
    folders = {path.relative_to(ROOT / "examples").parts[0] for path in files("examples/*/*")}
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1\) \|", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
    assert len(folders) > 5 and sorted(folders) == sorted(listed)


def test_every_decision_has_a_unique_number() -> None:
    numbers = [path.name.partition("-")[0] for path in files("docs/adr/*.md")]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    assert numbers and not twice, f"several decisions in docs/adr are numbered {twice}"


TOP_LEVEL = {
    *("benchmarks", "cdi", "demo", "deploy", "docs", "examples", "fuzz", "man", "python", "rust", "systemd", "tests"),
    *(".cargo", ".ci", ".github"),
}
"""The directories of the checkout. Another one is what a killed test or benchmark left, unless it is added here."""


def test_no_directory_of_a_test_or_benchmark_is_committed() -> None:
    tracked = (path.relative_to(ROOT) for path in files())
    unknown = {path.parts[0] for path in tracked if len(path.parts) > 1} - TOP_LEVEL
    assert not unknown, f"remove {sorted(unknown)} from Git, or add them to TOP_LEVEL"
