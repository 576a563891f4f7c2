"""kube-scheduler's own allocator and the agent's on the same random queries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocator import oracle
from allocator.question import allocate, has_names
from allocator.scenarios import scenario

BATCH = 250


@pytest.mark.parametrize("first", range(1_000_000, 1_001_000, BATCH))
def test_random_queries_match_the_scheduler(first: int, go_allocator: Path) -> None:
    seeds = range(first, first + BATCH)
    queries = {seed: query for seed in seeds if has_names(query := scenario(seed))}
    assert len(queries) > BATCH * 0.8
    for (seed, query), expected in zip(queries.items(), oracle.run(go_allocator, queries.values()), strict=True):
        if oracle.timed_out(expected):
            continue
        result = allocate(**query)
        assert oracle.comparable(result) == oracle.comparable(expected), (
            f"seed {seed}: the agent {result['error']}, the scheduler {expected['error']}\n{json.dumps(query)}"
        )


def test_corpus_still_matches_the_scheduler(go_allocator: Path) -> None:
    lines = [json.loads(line) for line in (Path(__file__).parent / "corpus.jsonl").read_text().splitlines()]
    results = oracle.run(go_allocator, [line["question"] for line in lines])
    for line, result in zip(lines, results, strict=True):
        assert oracle.comparable(result) == line["answer"], line["name"]
