"""A claim for a GPU, as users write it: a class of all GPUs, and a claim of it."""

from __future__ import annotations

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: any-gpu}
spec:
  selectors:
  - cel: {expression: 'device.attributes["dra-agent.internal"].type == "gpu"'}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: training, namespace: team}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: any-gpu}
"""
