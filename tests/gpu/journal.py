"""The report of a run: what was found, to read (report.md) and to compare (report.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """Sections by title: lines, or rows of a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sections: dict[str, Any] = {}

    def add(self, title: str, content: Any) -> None:
        """Add a section: a list of dicts becomes a table, anything else lines."""
        self._sections[title] = content

    def write(self) -> None:
        """Write both files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "report.json").write_text(json.dumps(self._sections, indent=1, default=str) + "\n")
        lines = ["# NVIDIA GPUs as the agent finds them", ""]
        for title, content in self._sections.items():
            lines += [f"## {title}", "", *_lines(content), ""]
        (self.folder / "report.md").write_text("\n".join(lines))


def _lines(content: Any) -> list[str]:
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        columns = list(dict.fromkeys(name for row in content for name in row))
        rows = [[_cell(row.get(name)) for name in columns] for row in content]
        return [_row(columns), _row(["---"] * len(columns)), *map(_row, rows)]
    if isinstance(content, dict):
        return [f"- {name}: {_cell(value)}" for name, value in content.items()] or ["nothing"]
    values = content if isinstance(content, list) else [content]
    return [f"- {_cell(value)}" for value in values] or ["nothing"]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return text.replace("|", "\\|").replace("\n", " ")
