"""Validation compared with the verdicts of Kubernetes (oracle/validation) on random objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_agent import _native

GOLDEN = Path(__file__).parent / "golden/validation.jsonl"

STRICTER = (
    # Kubernetes accepts these, although they are never meaningful; a comment in its code states it for the first.
    '"a/b/c" is not a qualified name',
    "has both matchAttribute and distinctAttribute",
    ".capacity.requests: ",
)


def errors(value: dict[str, Any]) -> list[str]:
    found = json.loads(_native.validate_object(json.dumps(value).encode()))
    return [f"{error['field']}: {error['message']}" for error in found]


@pytest.mark.parametrize("refused", [True, False])
def test_validation_agrees_with_kubernetes(refused: bool) -> None:
    cases = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    cases = [case["object"] for case in cases if case["refused"] is refused]
    assert len(cases) >= 200
    for value in cases:
        found = errors(value)
        if refused:
            assert found, value
        else:
            assert all(any(known in error for known in STRICTER) for error in found), (found, value)
