"""Counts how many jobs with three GPUs fit on a node, allocating until none fits: python jobs.py SLICES.json NODE."""

import json
import sys
from pathlib import Path

from dra_agent.allocator import allocate

slices = json.loads(Path(sys.argv[1]).read_text())["items"]
gpu = 'device.attributes["dra-agent.internal"].type == "gpu"'
classes = [{"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": gpu}}]}}]
request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": 3}}
held: list[dict] = []
while True:
    claim = {"metadata": {"name": f"job-{len(held)}"}, "spec": {"devices": {"requests": [request]}}}
    answer = allocate(node=sys.argv[2], classes=classes, slices=slices, claims=[claim], allocated=held)
    if not answer["allocated"]:
        break
    (result,) = answer["results"]
    print(claim["metadata"]["name"], *(device["device"] for device in result["devices"]["results"]))
    held.append({**claim, "status": {"allocation": result}})
print(answer["error"] or "the next one does not fit")
