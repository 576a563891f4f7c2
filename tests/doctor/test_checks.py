"""The page of the doctor describes each of its checks."""

from __future__ import annotations

import re
from pathlib import Path

from dra_agent.doctor import CHECKS

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/operate/doctor.md"


def test_each_check_has_a_row_in_the_page() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    # The first one passes always: it names the version.
    assert set(CHECKS) - {"agent"} <= set(rows)
