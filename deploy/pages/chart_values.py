"""Every value of the chart, as the page docs/reference/chart-values.md.

Names, defaults and descriptions are those of values.yaml: a description is the comment above a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.pages.commands import GENERATED

VALUES = Path(__file__).resolve().parents[1] / "helm/dra-agent/values.yaml"
HEAD = f"""\
{GENERATED}
# Chart values

This page lists every value of the Helm chart, generated from its `values.yaml`.
[Install](../how-to/install/deploy.md) and [the chart on a fleet](../how-to/install/chart.md) describe how to choose
them. The chart rejects unknown and invalid values by name.

"""
_TITLE = re.compile(r"# === (.+) ===$")
_KEY = re.compile(r"( *)([A-Za-z]\w*):")
_EXAMPLE = re.compile(r"#( +- |  )")
_PAGE = re.compile(r"\bdocs/((?:[\w-]+/)*[\w-]+\.md(?:#[\w-]+)?)")


def page() -> str:
    """Return docs/reference/chart-values.md.

    Raises:
        ValueError: A value has no description.
    """
    import yaml

    text = VALUES.read_text()
    values = yaml.safe_load(text)
    entries = list(_entries(text))
    documented = {path[:-1] for path, comment in entries if comment}
    sections: list[list[str]] = []
    for path, comment in entries:
        if path == ():
            sections.append([f"## {comment}", "", "| value | default | meaning |", "|---|---|---|"])
            continue
        value = values
        for name in path:
            value = value[name] if isinstance(value, dict) else ...
        if value is ...:
            continue  # a key within a list
        is_parent = isinstance(value, dict) and path in documented
        if not comment and (is_parent or (path[:-1] != () and path[:-1] not in documented)):
            continue
        if not comment:
            raise ValueError(f"values.yaml: {'.'.join(path)} has no description")
        cells = [f"`{'.'.join(path)}`", "" if is_parent else _default(value), comment]
        sections[-1].append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return HEAD + "\n\n".join("\n".join(section) for section in sections) + "\n"


def _entries(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each value with the comment above it; the path of a section's title is empty."""
    comment: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        if title := _TITLE.match(line):
            yield (), title[1]
        elif line.lstrip().startswith("#"):
            comment.append(line.strip())
            continue
        elif key := _KEY.match(line):
            parents = [parent for parent in parents if parent[0] < len(key[1])]
            yield (*(name for _, name in parents), key[2]), _prose(comment)
            parents.append((len(key[1]), key[2]))
        comment = []


def _prose(comment: list[str]) -> str:
    words = " ".join(line.lstrip("# ") for line in comment if not _EXAMPLE.match(line)).replace("<", "&lt;")
    return _PAGE.sub(lambda link: f"[{Path(link[1].partition('#')[0]).stem}]({_relative(link[1])})", words)


def _relative(page_of_docs: str) -> str:
    return page_of_docs.removeprefix("reference/") if page_of_docs.startswith("reference/") else f"../{page_of_docs}"


def _default(value: Any) -> str:
    if value in ("", None):
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
