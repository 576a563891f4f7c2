"""The page of exclusion codes has each code of the agent once, and pages name no other one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from dra_agent.claimable.codes import Code

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/exclusion-codes.md"
HOW_TO = ROOT / "docs/how-to/devices/not-published.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)


def test_the_page_has_each_code_once_in_the_order_of_the_program() -> None:
    assert ROW.findall(PAGE.read_text()) == list(get_args(Code))


def test_the_how_to_names_only_codes_that_exist() -> None:
    shown = re.findall(r"not published \(([a-z-]+)\)", HOW_TO.read_text())
    listed = re.findall(r"`([a-z]+(?:-[a-z]+)+)`", HOW_TO.read_text())
    assert len(shown) >= 4 and len(listed) >= 8
    assert {*shown, *listed} - set(get_args(Code)) == set()
