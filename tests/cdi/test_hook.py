"""The hook that limits containers to their share, run by a real container runtime."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tiers
from container_runtime import require_runtime
from dra_agent.cdi.claim import SpecDevice, build_spec
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import DeviceEdits
from dra_agent.cdi.model import ContainerEdits, Hook
from dra_agent.cdi.runtime import Runtime
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.device_setup.container_hook import ContainerHook
from dra_agent.inventory.model import Device

DRIVER = "dra-agent.internal"
REGION = "drm/0000:03:00.0/vram0"
PLACE_IN_CGROUP = """\
#!/bin/sh
# Puts the container into a cgroup of the tree: the runtime of this host may be configured to use none.
pid=$(sed 's/.*"pid" *: *\\([0-9]*\\).*/\\1/' | head -n 1)
mkdir -p {tree}/proc/$pid && echo 0::/pod/container > {tree}/proc/$pid/cgroup
"""


@pytest.fixture
def hooks(tmp_path: Path) -> ContainerEdits:
    root = tmp_path / "cgroup"
    (root / "pod/container").mkdir(parents=True)
    for folder in (root, root / "pod"):
        (folder / "cgroup.subtree_control").write_text("")
    (root / "pod/container/dmem.max").write_text("")
    place = tmp_path / "place"
    place.write_text(PLACE_IN_CGROUP.format(tree=tmp_path))
    place.chmod(0o755)
    hook = ContainerHook(tmp_path / "host")
    hook.install()
    first = ContainerEdits(hooks=(Hook("createRuntime", str(place), ("place",)),))
    arguments = ("--cgroups", str(root), "--proc", str(tmp_path / "proc"), "--region", REGION, "--bytes", "4294967296")
    return first.merged(hook.edits(*arguments))


def write_claim(hooks: ContainerEdits, cdi: Path) -> list[str]:
    gpu = Device("gpu-0000-03-00-0", "gpu", "amd", "0000:03:00.0", {})
    devices = [
        SpecDevice(
            ClaimDevice("n/gpu", gpu.name, ("gpu",), "share-1", consumed_capacity={"memory": "4Gi"}),
            gpu,
            DeviceEdits(hooks, ContainerEdits()),
        )
    ]
    spec = build_spec(DRIVER, ClaimRef("uid-1", "default", "train"), devices)
    SpecDirectory(cdi, DRIVER).write("uid-1", spec.data)
    return list(spec.ids[0])


def run(runtime: Runtime, ids: list[str], rootfs: Path) -> subprocess.CompletedProcess[str]:
    command = runtime.command(ids, rootfs, ["/bin/busybox", "echo", "started"])
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)


@tiers.PROGRAMS
def test_container_starts_only_with_its_limit_set(tmp_path: Path, hooks: ContainerEdits) -> None:
    runtime, rootfs, cdi = require_runtime(tmp_path)
    ids = write_claim(hooks, cdi)
    limit = tmp_path / "cgroup/pod/container/dmem.max"
    completed = run(runtime, ids, rootfs)
    assert completed.stdout == "started\n", completed.stderr
    assert limit.read_text() == f"{REGION} 4294967296\n"
    limit.unlink()
    refused = run(runtime, ids, rootfs)
    assert refused.returncode != 0 and "started" not in refused.stdout
    assert not limit.exists()


def test_official_library_passes_the_hook_unchanged(oracle: Any, tmp_path: Path, hooks: ContainerEdits) -> None:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    ids = write_claim(hooks, cdi)
    response = oracle([cdi], [ids])
    assert not response["errors"]
    text = json.dumps(response)
    assert "createRuntime" in text and "dra-agent-hook" in text and "4294967296" in text
