"""The quickstarts of README.md: the lines of the block below a heading."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
IMAGE = "registry.example.com/dra-agent"


def lines(heading: str) -> list[str]:
    """Return the commands of the first `sh` block below the heading, one per line, as they are pasted."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", README.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None, f"README.md has no section {heading!r}"
    block = re.search(r"^```sh\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)
    assert block is not None, f"{heading!r} has no commands"
    return block[1].splitlines()
