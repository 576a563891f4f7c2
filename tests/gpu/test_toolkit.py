"""The comparison with `nvidia-ctk cdi generate`, with a program in its place: simulated hosts have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.cdi.edits.nvidia import NvidiaGpu
from dra_agent.cdi.edits.nvidia_toolkit import ToolkitCommand
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan
from eventually import DEADLINE_S
from recordings.instances import divide

from .test_driver import compare_nodes, nvidia


@pytest.fixture(scope="module", params=["vm-1gpu", "mixed"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A whole GPU, or MIG instances."""
    made = dra_simulate.build(request.param, tmp_path_factory.mktemp("toolkit") / "host")
    if request.param == "mixed":
        divide(made)
    return made


@pytest.fixture(scope="module")
def devices(host: Host) -> list[Device]:
    return nvidia(collect(host, scan(host), InventorySettings(nvml_timeout=DEADLINE_S)))


def generator(folder: Path, nodes: dict[str, list[str]]) -> ToolkitCommand:
    """Return a program that prints a spec with these device nodes of each UUID."""
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
            for uuid, paths in nodes.items()
        ],
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/dri/card0"}]},
    }
    program = folder / "nvidia-ctk"
    program.write_text(f"#!/bin/sh\ncat <<'SPEC'\n{json.dumps(spec)}\nSPEC\n")
    program.chmod(0o755)
    return ToolkitCommand(program)


def test_missing_nodes_are_named_and_additional_ones_reported(
    host: Host, devices: list[Device], tmp_path: Path
) -> None:
    provider = NvidiaGpu(host, (), None)
    nodes = {device.identity["uuid"]: [node.path for node in provider(device).own.device_nodes] for device in devices}
    assert all(nodes.values())
    rows, wrong = compare_nodes(provider, generator(tmp_path, nodes), devices)
    assert wrong == [] and len(rows) == len(devices)
    assert all("/dev/dri/card0" in row["only nvidia-ctk"] for row in rows)
    first = devices[0]
    removed = nodes[first.identity["uuid"]].pop()
    _, wrong = compare_nodes(provider, generator(tmp_path, nodes), devices)
    assert wrong == [f"{first.name}: nvidia-ctk does not list {removed}"]
