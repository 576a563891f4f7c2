"""Questions of odd shape get the answer that Go's allocator gave, or are refused; never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allocator import oracle
from allocator.odd_questions import questions
from dra_agent.allocator import allocate
from dra_agent.errors import PermanentError

RECORDED = Path(__file__).parent / "odd.jsonl"
REFUSED = {"allocated": False, "results": [], "error": True}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        return oracle.comparable(dict(allocate(**question)))
    except PermanentError:
        return REFUSED


def test_every_odd_question_is_answered_as_recorded() -> None:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert [line["name"] for line in lines] == list(questions())
    differing = [(line["name"], answer(line["question"]), line["answer"]) for line in lines]
    assert [entry for entry in differing if entry[1] != entry[2]] == []


def test_odd_questions_have_answers_of_both_kinds() -> None:
    errors = [json.loads(line)["answer"]["error"] for line in RECORDED.read_text().splitlines()]
    assert sum(errors) >= 20
    assert len(errors) - sum(errors) >= 20
