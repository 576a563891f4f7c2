"""kube-scheduler's own allocator and the agent's on the same random queries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocator import oracle, through_cluster
from allocator.scenarios import scenario
from dra_agent.allocator import allocate

BATCH = 250


@pytest.mark.parametrize("first", range(1_000_000, 1_001_000, BATCH))
def test_random_queries_match_the_scheduler(first: int, go_allocator: Path) -> None:
    seeds = range(first, first + BATCH)
    queries = [scenario(seed) for seed in seeds]
    expected_results = oracle.run(go_allocator, queries)
    assert len(expected_results) == BATCH
    for seed, query, expected in zip(seeds, queries, expected_results, strict=True):
        if oracle.timed_out(expected):
            continue
        result = allocate(**query)
        assert oracle.comparable(dict(result)) == oracle.comparable(expected), (
            f"seed {seed}: the agent {result['error']}, the scheduler {expected['error']}\n{json.dumps(query)}"
        )
        if through_cluster.has_names(query):
            kept = through_cluster.allocate(query)
            assert oracle.comparable(kept) == oracle.comparable(expected), (
                f"seed {seed}: the cluster {kept['error']}, the scheduler {expected['error']}\n{json.dumps(query)}"
            )


def test_a_search_with_early_pruning_matches_the_scheduler(go_allocator: Path) -> None:
    seeds = range(1_500_000, 1_500_000 + BATCH)
    oracle.assert_pruned_searches_match(go_allocator, {seed: scenario(seed) for seed in seeds})


def test_corpus_still_matches_the_scheduler(go_allocator: Path) -> None:
    lines = [json.loads(line) for line in (Path(__file__).parent / "corpus.jsonl").read_text().splitlines()]
    results = oracle.run(go_allocator, [line["question"] for line in lines])
    for line, result in zip(lines, results, strict=True):
        assert oracle.comparable(result) == line["answer"], line["name"]
