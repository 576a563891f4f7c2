"""Random allocator queries with fields of feature gates that are off by default, and any of these gates on.

`python tests/allocator/gated.py ORACLE` runs the binary of tests/oracle/allocator and writes gated.jsonl.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from allocator import oracle
from allocator.gated_cases import GATED_CASES, LISTS, OPERATIONS
from allocator.scenarios import scenario

Json = dict[str, Any]

GATES = (LISTS, OPERATIONS)
_LISTS: dict[str, list[Any]] = {
    "string": ["A", "B", "pci0", "pci1", "pci2"],
    "int": [0, 1, 2],
    "bool": [True, False],
    "version": ["1.0.0", "2.1.0", "2.1.0-rc.1"],
}


def gated_scenario(seed: int) -> Json:
    """Return a query; each gate is on with a probability of 0.7, and its fields are used with another probability."""
    rng = random.Random(f"gated {seed}")
    query = scenario(seed)
    lists, operations = rng.random() < 0.8, rng.random() < 0.3
    for entry in query["slices"]:
        spec = entry["spec"]
        if operations and rng.random() < 0.4:
            spec["skipNodeOperations"] = rng.choice([["*"], ["NodePrepareResources", "NodeUnprepareResources"]])
        for device in spec.get("devices") or ():
            if lists:
                _use_lists(rng, device)
    if rng.random() < 0.7:
        query["node"] = _declaring(query["node"])
    query["gates"] = [gate for gate in GATES if rng.random() < 0.7]
    return query


def _use_lists(rng: random.Random, device: Json) -> None:
    for name, value in (device.get("attributes") or {}).items():
        kind = next(iter(value))
        if kind in _LISTS and rng.random() < 0.35:
            values = _LISTS[kind]
            device["attributes"][name] = {f"{kind}s": rng.sample(values, rng.randint(1, min(3, len(values))))}


def _declaring(node: Any) -> Any:
    """Return the Node whose kubelet supports skipped operations."""
    if isinstance(node, str):
        node = {"metadata": {"name": node}}
    return {**node, "status": {"declaredFeatures": [OPERATIONS]}}


SEEDS = range(3_500_000, 3_518_000)
MAX_QUERY_CHARS = 4500
WANTED = {"a gate decides": 80, "fits": 15, "does not fit": 15, "error": 10}


def main(binary: Path) -> None:
    """Record the cases, and random queries, most of which have another answer without their gates."""
    queries = [build() for build in GATED_CASES.values()]
    lines = [
        {"name": name, "question": query, "answer": oracle.comparable(answer)}
        for name, query, answer in zip(GATED_CASES, queries, oracle.run(binary, queries), strict=True)
    ]
    queries = [query for seed in SEEDS if len(json.dumps(query := gated_scenario(seed))) <= MAX_QUERY_CHARS]
    plain = oracle.run(binary, [{**query, "gates": []} for query in queries])
    gated = oracle.run(binary, queries)
    counts: Counter[str] = Counter()
    for number, (query, with_gates, without) in enumerate(zip(queries, gated, plain, strict=True)):
        if oracle.timed_out(with_gates) or oracle.timed_out(without):
            continue
        answer = oracle.comparable(with_gates)
        if answer["error"]:
            kind = "error"
        elif answer != oracle.comparable(without):
            kind = "a gate decides"
        else:
            kind = "fits" if answer["allocated"] else "does not fit"
        if counts[kind] < WANTED[kind]:
            counts[kind] += 1
            lines.append({"name": f"{kind} {number}", "question": query, "answer": answer})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (Path(__file__).parent / "gated.jsonl").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
