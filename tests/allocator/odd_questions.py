"""Malformed queries: duplicate names, lists instead of objects, nulls in place of values.

`python tests/allocator/odd_questions.py ORACLE` runs the binary of tests/oracle/allocator and writes odd.jsonl.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from allocator import oracle

Json = dict[str, Any]
GPU = "gpu.example.com"
TOLERATIONS = ({"key": "first", "operator": "Exists"}, {"key": "second", "operator": "Exists"})
PATHS: list[list[str | int]] = [
    ["classes", 0],
    ["classes", 0, "metadata"],
    ["classes", 0, "spec"],
    ["classes", 0, "spec", "selectors", 0],
    ["classes", 0, "spec", "selectors", 0, "cel"],
    ["classes", 0, "spec", "config", 0],
    ["slices", 0],
    ["slices", 0, "spec"],
    ["slices", 0, "spec", "pool"],
    ["slices", 0, "spec", "devices", 0],
    ["slices", 0, "spec", "devices", 0, "attributes"],
    ["slices", 0, "spec", "devices", 0, "attributes", "model"],
    ["slices", 0, "spec", "devices", 0, "capacity", "memory"],
    ["slices", 0, "spec", "devices", 0, "taints", 0],
    ["slices", 0, "spec", "devices", 0, "bindingConditions", 0],
    ["claims", 0],
    ["claims", 0, "metadata"],
    ["claims", 0, "spec", "devices"],
    ["claims", 0, "spec", "devices", "requests", 0],
    ["claims", 0, "spec", "devices", "requests", 0, "exactly"],
    ["claims", 0, "spec", "devices", "requests", 0, "exactly", "tolerations", 0],
    ["claims", 0, "spec", "devices", "config", 0, "requests", 0],
    ["node", "metadata", "labels", "zone"],
]


def make_query(requests: list[Json]) -> Json:
    """Return a query with one slice of three devices, one class, one claim."""
    opaque = {"opaque": {"driver": GPU, "parameters": {"kind": "whole"}}}
    device: Json = {"attributes": {"model": {"string": "A"}}, "capacity": {"memory": {"value": "4Gi"}}}
    devices = [{"name": f"d{index}", **copy.deepcopy(device)} for index in range(3)]
    devices[0].update({"taints": [{"key": "first", "effect": "NoSchedule"}], "bindingConditions": ["ready"]})
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    selectors = [{"cel": {"expression": f'device.driver == "{GPU}"'}}]
    return {
        "node": {"metadata": {"name": "n1", "labels": {"zone": "a"}}},
        "classes": [{"metadata": {"name": "gpu"}, "spec": {"selectors": selectors, "config": [opaque]}}],
        "slices": [
            {"metadata": {"name": "s"}, "spec": {"driver": GPU, "pool": pool, "nodeName": "n1", "devices": devices}}
        ],
        "claims": [
            {
                "metadata": {"name": "c", "namespace": "d", "uid": "u"},
                "spec": {"devices": {"requests": requests, "config": [{"requests": ["r"], **opaque}]}},
            }
        ],
        "allocated": [],
    }


def exact(name: str, which: int) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu", "tolerations": [TOLERATIONS[which]]}}


def choice(name: str, *subs: tuple[str, int]) -> Json:
    alternatives = [{"name": sub, "deviceClassName": "gpu", "tolerations": [TOLERATIONS[w]]} for sub, w in subs]
    return {"name": name, "firstAvailable": alternatives}


def malformed_queries() -> dict[str, Json]:
    """Return each query by its name."""
    named = {
        "two requests of one name": [exact("r", 0), exact("r", 1)],
        "a choice, then a request of its name": [choice("r", ("s", 0)), exact("r", 1)],
        "a request, then a choice of its name": [exact("r", 0), choice("r", ("s", 1))],
        "two choices of one name": [choice("r", ("s", 0)), choice("r", ("t", 1), ("s", 1))],
        "two alternatives of one name": [choice("r", ("s", 1), ("s", 0))],
        "a choice without a name": [choice("", ("s", 0))],
        "a choice without a name, and a request of its alternative's": [choice("", ("s", 0)), exact("s", 1)],
        "a request without a name": [exact("", 0)],
        "an alternative without a name": [choice("r", ("", 0))],
    }
    queries = {name: make_query(requests) for name, requests in named.items()}
    for path in PATHS:
        for kind, value in (("a list", []), ("null", None), ("a text", "x"), ("a number", 1)):
            changed = make_query([exact("r", 0)])
            container: Any = changed
            for step in path[:-1]:
                container = container[step]
            container[path[-1]] = value
            queries[f"{kind} at {'.'.join(map(str, path))}"] = changed
    return queries


def main(binary: Path) -> None:
    queries = malformed_queries()
    answers = oracle.run(binary, queries.values())
    lines = [
        {"name": name, "question": queries[name], "answer": oracle.comparable(answer)}
        for name, answer in zip(queries, answers, strict=True)
    ]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (Path(__file__).parent / "odd.jsonl").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
