"""The types of Kubernetes 1.35 and 1.36 have every field that the chart renders.

They need no cluster. To build them takes more CPU time than other tests, and tests/deploy has the oldest
and the newest version: Kubernetes removes no field from a version of an API (its deprecation policy, rule 1).
"""

from __future__ import annotations

import json
import subprocess

import pytest

from cluster.kube import build
from cluster.kube.identity import CHART
from deploy.api_versions import OPERATOR, VARIANTS, program, refused


@pytest.mark.parametrize("version", ["1.35", "1.36"])
def test_types_have_every_field_of_the_chart(version: str) -> None:
    oracle = program(version)
    command = [str(build.programs() / "helm"), "template", "dra-agent", str(CHART), "--values", "-"]
    command += [f"--api-versions={name}" for name in OPERATOR]
    for variant, values in VARIANTS.items():
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=True)
        assert not refused(oracle, done.stdout), variant
