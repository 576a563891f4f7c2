"""Writes corpus.jsonl anew: `python tests/allocator/make_corpus.py ORACLE`, the binary of tests/oracle/allocator."""

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
LARGEST = 4500
WANTED = {"fits": 190, "does not fit": 70}
PER_ERROR = 4


def kind(answer: dict[str, Any]) -> str:
    """Answers of one kind are alike; of errors, those whose texts differ only in names and numbers."""
    if answer["error"] is None:
        return "fits" if answer["allocated"] else "does not fit"
    return re.sub(r"\S*[\d/\"]\S*", "", answer["error"])[:60]


def main(binary: Path) -> None:
    lines = []
    questions = [case() for case in CASES.values()]
    for name, question, answer in zip(CASES, questions, oracle.ask(binary, questions), strict=True):
        lines.append({"name": name, "question": question, "answer": oracle.comparable(answer)})
    taken: Counter[str] = Counter()
    questions = [scenario(seed) for seed in SEEDS]
    for seed, question, answer in zip(SEEDS, questions, oracle.ask(binary, questions), strict=True):
        group = kind(answer)
        small = len(json.dumps(question)) <= LARGEST
        if not small or oracle.timed_out(answer) or taken[group] >= WANTED.get(group, PER_ERROR):
            continue
        taken[group] += 1
        lines.append({"name": f"seed {seed}", "question": question, "answer": oracle.comparable(answer)})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (Path(__file__).parent / "corpus.jsonl").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
