"""Places jobs with three GPUs on the nodes of a cluster until none fits: python nodes.py SLICES.json..."""

import sys
from pathlib import Path

from dra_agent.cluster import Cluster

gpu = 'device.attributes["dra-agent.internal"].type == "gpu"'
classes = [{"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": gpu}}]}}]
request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": 3}}
cluster = Cluster((Path(name).read_bytes() for name in sys.argv[1:]), classes)
jobs = 0
while True:
    job = {"metadata": {"name": f"job-{jobs}"}, "spec": {"devices": {"requests": [request]}}}
    found = cluster.fits([job])
    if not found.fits:
        break
    node = found.fits[0]
    (result,) = cluster.allocate(node, [job])["results"]
    cluster.hold([{**job, "status": {"allocation": result}}])
    print(job["metadata"]["name"], node, *(device["device"] for device in result["devices"]["results"]))
    jobs += 1
for node, reason in {**found.reasons, **found.errors}.items():
    print(f"{node}: {reason}")
