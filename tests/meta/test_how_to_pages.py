"""Each how-to page names what it needs at its beginning, and what to check if it fails at its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/how-to").rglob("*.md"))
LAST = {"troubleshooting.md": "If this does not help"}
"""The page to which the others lead."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_prerequisites_and_what_to_check(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    introduction, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert re.search(r"\bPrerequisites: \S", introduction), "no prerequisites before the first section"
    heading, _, last = sections[-1].partition("\n")
    assert heading == LAST.get(page.name, "If it fails")
    assert re.search(r"\]\([^)]*(?:\.md|#)", last), "the last section leads nowhere"
