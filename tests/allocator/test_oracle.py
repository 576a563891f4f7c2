"""kube-scheduler's own allocator and ours, asked the same random questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocator import oracle
from allocator.scenarios import scenario
from dra_agent import _native
from dra_agent.allocator import allocate, encode_query

BATCH = 250


@pytest.mark.parametrize("first", range(1_000_000, 1_001_000, BATCH))
def test_random_questions_have_the_scheduler_s_answers(first: int, go_allocator: Path) -> None:
    seeds = range(first, first + BATCH)
    questions = [scenario(seed) for seed in seeds]
    wanted = oracle.ask(go_allocator, questions)
    assert len(wanted) == BATCH
    for seed, asked, want in zip(seeds, questions, wanted, strict=True):
        if oracle.timed_out(want):
            continue
        got = allocate(**asked)
        assert oracle.comparable(dict(got)) == oracle.comparable(want), (
            f"seed {seed}: ours says {got['error']}, the scheduler {want['error']}\n{json.dumps(asked)}"
        )


def test_a_search_that_prunes_from_the_start_has_the_scheduler_s_answers(go_allocator: Path) -> None:
    seeds = range(1_500_000, 1_500_000 + BATCH)
    questions = [scenario(seed) for seed in seeds]
    for seed, asked, want in zip(seeds, questions, oracle.ask(go_allocator, questions), strict=True):
        if oracle.timed_out(want):
            continue
        pruning = {**json.loads(encode_query(**asked)), "attempts_before_pruning": 0}
        got = json.loads(_native.allocate(json.dumps(pruning).encode()))
        assert oracle.comparable(got) == oracle.comparable(want), (
            f"seed {seed}: ours says {got['error']}, the scheduler {want['error']}\n{json.dumps(asked)}"
        )


def test_the_corpus_is_still_the_scheduler_s(go_allocator: Path) -> None:
    lines = [json.loads(line) for line in (Path(__file__).parent / "corpus.jsonl").read_text().splitlines()]
    answers = oracle.ask(go_allocator, [line["question"] for line in lines])
    for line, answer in zip(lines, answers, strict=True):
        assert oracle.comparable(answer) == line["answer"], line["name"]
