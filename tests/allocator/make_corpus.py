"""Rewrites corpus.jsonl: `python tests/allocator/make_corpus.py ORACLE`, the binary of tests/oracle/allocator."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from allocator import oracle
from allocator.edges import CASES
from allocator.scenarios import scenario

SEEDS = range(2_000_000, 2_004_500)
MAX_QUERY_CHARS = 4500
WANTED_COUNTS = {"fits": 190, "does not fit": 70}
MAX_PER_ERROR = 4


def kind(answer: dict[str, Any]) -> str:
    """Return the kind of an outcome; errors of one kind differ only in names and numbers."""
    if answer["error"] is None:
        return "fits" if answer["allocated"] else "does not fit"
    return re.sub(r"\S*[\d/\"]\S*", "", answer["error"])[:60]


def main(binary: Path) -> None:
    lines = []
    queries = [case() for case in CASES.values()]
    for name, query, answer in zip(CASES, queries, oracle.run(binary, queries), strict=True):
        lines.append({"name": name, "question": query, "answer": oracle.comparable(answer)})
    counts: Counter[str] = Counter()
    queries = [scenario(seed) for seed in SEEDS]
    for seed, query, answer in zip(SEEDS, queries, oracle.run(binary, queries), strict=True):
        group = kind(answer)
        small = len(json.dumps(query)) <= MAX_QUERY_CHARS
        if not small or oracle.timed_out(answer) or counts[group] >= WANTED_COUNTS.get(group, MAX_PER_ERROR):
            continue
        counts[group] += 1
        lines.append({"name": f"seed {seed}", "question": query, "answer": oracle.comparable(answer)})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (Path(__file__).parent / "corpus.jsonl").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
