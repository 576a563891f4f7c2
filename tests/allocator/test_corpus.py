"""Queries with the recorded results of kube-scheduler's allocator; Go is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allocator import oracle
from allocator.question import allocate

CORPUS = Path(__file__).parent / "corpus.jsonl"


def corpus() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CORPUS.read_text().splitlines()]


def test_results_match_the_recorded_ones() -> None:
    differing = []
    for line in corpus():
        result = oracle.comparable(allocate(**line["question"]))
        if result != line["answer"]:
            differing.append((line["name"], result, line["answer"]))
    assert differing == []


def test_corpus_covers_every_kind_of_result() -> None:
    results = [line["answer"] for line in corpus()]
    assert len(results) >= 300
    devices = [
        device
        for entry in results
        for result in entry["results"]
        for device in result.get("devices", {}).get("results", [])
    ]
    assert sum(entry["allocated"] for entry in results) >= 150
    assert sum(entry["error"] for entry in results) >= 60
    assert sum(not entry["allocated"] and not entry["error"] for entry in results) >= 60
    for member in ("shareID", "consumedCapacity", "adminAccess", "tolerations", "bindingConditions"):
        assert sum(member in device for device in devices) >= 10, member
    assert sum("/" in device["request"] for device in devices) >= 20
