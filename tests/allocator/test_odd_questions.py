"""Malformed queries get the result of Go's allocator, or are refused; never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allocator import oracle
from allocator.odd_questions import malformed_queries
from allocator.question import allocate
from dra_agent.errors import PermanentError

RECORDED = Path(__file__).parent / "odd.jsonl"
REFUSED = {"allocated": False, "results": [], "error": True}


def result_of(query: dict[str, Any]) -> dict[str, Any]:
    try:
        return oracle.comparable(allocate(**query))
    except PermanentError:
        return REFUSED


def test_malformed_queries_have_the_recorded_result() -> None:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert [line["name"] for line in lines] == list(malformed_queries())
    compared = [(line["name"], result_of(line["question"]), line["answer"]) for line in lines]
    assert [entry for entry in compared if entry[1] != entry[2]] == []


def test_malformed_queries_have_results_of_both_kinds() -> None:
    errors = [json.loads(line)["answer"]["error"] for line in RECORDED.read_text().splitlines()]
    assert sum(errors) >= 20
    assert len(errors) - sum(errors) >= 20
