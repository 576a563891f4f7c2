"""The threat model names a test for every prevented attack."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([ABCDN]) \| .+ \| `(tests/\S+\.py)::(\w+)` \|$")


def test_each_row_names_an_existing_test() -> None:
    page = (ROOT / "docs/explanation/threat-model.md").read_text()
    table = page.partition("## Prevented attacks")[2].partition("## Not protected")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    found = [ROW.match(row) for row in rows]
    assert len(rows) > 15 and all(found), [row for row, match in zip(rows, found, strict=True) if match is None]
    for match in found:
        assert match is not None
        path = ROOT / match[2]
        assert path.exists(), match[2]
        names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        assert match[3] in names, f"{match[2]} has no {match[3]}"
    assert {match[1] for match in found if match} == set("ABCDN"), "each attacker has a test"
