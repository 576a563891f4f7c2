"""YAML of users has a budget: for depth, and for what its aliases grow to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import dra_agent
from dra_agent import yaml_text


def test_a_document_is_what_pyyaml_reads() -> None:
    text = "a: &x {b: [1, two]}\nc: *x\nd: &y [*x, *x]\ne: {<<: *x, f: *y}\n"
    assert yaml_text.load(text) == yaml.safe_load(text)
    assert yaml_text.load(b"") is None


def growing(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    return "\n".join([*lines, *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels))])


def nested(levels: int) -> str:
    return "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, levels))])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (growing(9), "its aliases grow to more than 1000000 entries and characters"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 11) + "]\n", "its aliases grow"),
        ("[" * 101 + "]" * 101, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        (nested(102), "nested too deeply"),
        ("a: &a [*a]\n", "an alias of a node that contains it"),
        ("a: *b\n", "an alias of a node that contains it, or of none"),
    ],
    ids=["entries", "text", "depth", "open lists", "depth of aliases", "cycle", "no anchor"],
)
def test_what_is_too_large_is_refused_before_it_is_built(text: str, problem: str) -> None:
    with pytest.raises(yaml.YAMLError) as refused:
        yaml_text.load(text)
    assert str(getattr(refused.value, "problem", "")).startswith(problem)


def test_what_is_within_the_budget_is_read() -> None:
    assert len(yaml_text.load(growing(5))) == 5
    assert yaml_text.load("[" * 100 + "]" * 100)
    assert yaml_text.load(nested(99))


def test_no_module_reads_yaml_without_the_budget() -> None:
    package = Path(dra_agent.__file__).parents[1]
    reads = re.compile(r"\byaml\.(?:safe_load|full_load|unsafe_load|load|compose)(?:_all)?\(")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if reads.search(path.read_text())}
    assert found == {"dra_agent/yaml_text.py"}
