"""Prints the part of requirements.lock that the agent needs at run time, with its hashes, for pip.

The lock names for each package which others require it ("via"). The libraries of the agent are those that
pyproject.toml lists as dependencies, and what these require; tools of development are left out.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ \\;]+)")


def main() -> int:
    """Print the entries."""
    print("\n".join(runtime_entries(ROOT).values()))
    return 0


def runtime_entries(root: Path) -> dict[str, str]:
    """Return the lock's text of each package that the agent needs at run time, by name."""
    entries: dict[str, str] = {}
    for text in re.split(r"\n(?=\S)", (root / "requirements.lock").read_text().strip()):
        if found := _ENTRY.match(text):
            entries[found["name"].lower()] = text
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[\s<>=!~;\[(]", line)[0].lower() for line in project["dependencies"]}
    missing = needed - entries.keys()
    if missing:
        raise SystemExit(f"requirements.lock: {', '.join(sorted(missing))} missing; run `make lock`")
    while added := {name for name, text in entries.items() if required_by(text) & needed} - needed:
        needed |= added
    return {name: entries[name] for name in sorted(needed)}


def required_by(entry: str) -> set[str]:
    """Return the packages of the "via" comments of an entry."""
    _, _, via = entry.partition("# via")
    return {line.strip(" #") for line in via.splitlines()} - {"", "dra-agent (pyproject.toml)"}


if __name__ == "__main__":
    sys.exit(main())
