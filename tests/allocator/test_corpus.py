"""Questions with the answers that kube-scheduler's allocator gave; needs no Go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allocator import oracle
from dra_agent.allocator import allocate

CORPUS = Path(__file__).parent / "corpus.jsonl"


def corpus() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CORPUS.read_text().splitlines()]


def test_every_recorded_answer_is_ours() -> None:
    differing = []
    for line in corpus():
        got = oracle.comparable(dict(allocate(**line["question"])))
        if got != line["answer"]:
            differing.append((line["name"], got, line["answer"]))
    assert differing == []


def test_the_corpus_covers_every_kind_of_answer() -> None:
    answers = [line["answer"] for line in corpus()]
    assert len(answers) >= 300
    devices = [
        device
        for answer in answers
        for result in answer["results"]
        for device in result.get("devices", {}).get("results", [])
    ]
    assert sum(answer["allocated"] for answer in answers) >= 150
    assert sum(answer["error"] for answer in answers) >= 60
    assert sum(not answer["allocated"] and not answer["error"] for answer in answers) >= 60
    for member in ("shareID", "consumedCapacity", "adminAccess", "tolerations", "bindingConditions"):
        assert sum(member in device for device in devices) >= 10, member
    assert sum("/" in device["request"] for device in devices) >= 20
