"""Commands of pages, as tests of packages run them: those of a section's blocks, and those in a row of a table."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs/how-to"
LIFECYCLE = "operate/lifecycle.md"


def block(page: str, heading: str) -> list[str]:
    """Return the lines of all `sh` blocks of a section, without comments; the heading is that of the page or a part."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", (PAGES / page).read_text(), re.M | re.S)
    assert section is not None, f"{page} has no section {heading!r}"
    lines = [line for found in re.findall(r"^```sh\n(.*?)^```", section[1], re.M | re.S) for line in found.splitlines()]
    return [re.split(r"\s+# ", line)[0] for line in lines]


def line(page: str, heading: str, part: str) -> str:
    """Return the only command of a section that contains this part."""
    (found,) = [command for command in block(page, heading) if part in command]
    return found


def row(page: str, name: str) -> list[str]:
    """Return the commands in the second cell of the row with this name."""
    (cell,) = re.findall(rf"^\| {re.escape(name)} \| (.*?) \|", (PAGES / page).read_text(), re.M)
    return re.findall(r"`([^`]+)`", cell)
