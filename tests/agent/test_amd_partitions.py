"""A real agent on a simulated MI300X host: claims divide a GPU, and the other seven stay as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from agent.conftest import Start
from dra_agent.cli.main import main

CONFIG = """\
[[inventory.partition]]
when = 'device.attributes["dra-agent.internal"].vendor == "amd"'
mode = "amd"
"""
OBJECTS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: eighth}
spec:
  selectors:
  - cel: {expression: 'device.attributes["dra-agent.internal"].?profile.orValue("") == "cpx-nps1"'}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: part, namespace: default}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: eighth, count: 2}
"""


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("profile", ["mi300x", "mi300x-linux-6.18"])
def test_a_claim_for_partitions_gets_them_and_no_more(
    profile: str, start: Start, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = state / "simulated" / profile
    host = dra_simulate.build(profile, root)
    config, objects = tmp_path / "config.toml", tmp_path / "objects.yaml"
    config.write_text(CONFIG)
    objects.write_text(OBJECTS)
    shown = ("devices", "--state-dir", str(state), "--simulate", profile, "--config", str(config))
    before = answer(capsys, *shown)

    start("--simulate", profile, "--config", str(config)).ready()
    assert main(["claim", "apply", "--state-dir", str(state), "-f", str(objects)]) == 0
    capsys.readouterr()
    claim = answer(capsys, "claim", "get", "part", "--state-dir", str(state))
    names = [device["device"] for device in claim["devices"]]
    assert names == ["gpu-0000-0c-00-0-cpx-0", "gpu-0000-0c-00-0-cpx-1"]

    (path,) = (tmp_path / "cdi").glob("*.json")
    edits = [device["containerEdits"] for device in json.loads(path.read_text())["devices"]]
    given = {
        item.get("path") or item.get("containerPath")
        for one in edits
        for item in (*one.get("deviceNodes", ()), *one.get("mounts", ()))
    }
    nodes = {"/dev/dri/card0", "/dev/dri/renderD128", "/dev/dri/card1", "/dev/dri/renderD129"}
    assert {node for node in given if node is not None and node.startswith("/dev/dri")} == nodes
    modes = {
        gpu.parent.name: gpu.read_text().strip()
        for gpu in host.sysfs.glob("bus/pci/devices/*/current_compute_partition")
    }
    assert modes.pop("0000:0c:00.0") == "CPX" and set(modes.values()) == {"SPX"} and len(modes) == 7
    after = answer(capsys, *shown)
    for old, new in zip(before["devices"], after["devices"], strict=True):
        changed = {key for key in old if old[key] != new[key]}
        assert changed <= {"held_by"}, "what is published does not depend on the mode"
