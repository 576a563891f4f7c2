"""The line of every key and list element, in every way that TOML can write them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from dra_agent.toml_lines import TomlLines, field_of

ROOT = Path(__file__).parents[2]
FILES = [
    ROOT / "systemd/config.toml",
    ROOT / "pyproject.toml",
    ROOT / "Cargo.lock",
    *ROOT.glob("examples/agent/*.toml"),
]

DOCUMENT = '''\
# a = 1
a = "b = 2 # [c]"  # [d]
'b'."c" . d = [1, [2,
  3], { e = 4,  f.g = 'x' }, # ]
]
text = """
[not-a-table]
a = 1 \\""" ""\\
  """
raw = \'\'\'
x = 1\'\'\'
date = 1979-05-27T07:32:00Z

[ t-1 . sub ]
empty = {}
k = "\\""
[[ many ]]
x = 1
[many.inner]
y = 2
[[many.list]]
z = 3
[[many.list]]
[[many]]
[many.inner]
y = 4
'''
LINES = {
    "a": 2,
    "b.c.d": 3,
    "b.c.d[0]": 3,
    "b.c.d[1][1]": 4,
    "b.c.d[2].e": 4,
    "b.c.d[2].f.g": 4,
    "text": 6,
    "raw": 10,
    "date": 12,
    "t_1.sub": 14,
    "t_1.sub.k": 16,
    "many[0]": 17,
    "many[0].x": 18,
    "many[0].inner.y": 20,
    "many[0].list[0].z": 22,
    "many[0].list[1]": 23,
    "many[1]": 24,
    "many[1].inner.y": 26,
    "many[1].absent": 24,
}


def test_every_way_to_write_a_key_is_found() -> None:
    tomllib.loads(DOCUMENT)
    lines = TomlLines(DOCUMENT)
    assert {field: lines.line(field) for field in LINES} == LINES
    assert lines.line("absent") is None


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {} if isinstance(value, dict | list) else {path: value}
    for step, one in inner:
        found |= leaves(one, (*path, step.replace("-", "_") if isinstance(step, str) else step))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_value_is_on_the_line_that_is_found(file: Path) -> None:
    text = file.read_text()
    values = leaves(tomllib.loads(text))
    assert values
    lines = TomlLines(text)
    for path, value in values.items():
        line = lines.line(field_of(path))
        assert line is not None, path
        if isinstance(value, str) and not {"\n", '"', "\\"} & set(value):
            assert value in text.splitlines()[line - 1], (path, line)
