"""Memory limits per cgroup on a simulated host: from the claim to the limit, its enforcement, and its usage."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from agent.conftest import AgentProcess, Start
from agent.test_kubernetes_mode import kubernetes, prepare
from dra_agent.cli.main import main
from dra_simulate import inject, nvml
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from kubelet_plugin.fake_kubelet import FakeKubelet

__all__ = ["kubernetes"]

CONFIG = """\
[inventory]
[[inventory.share]]
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
enforcement = "nvml-cgroup"
"""
EXAMPLES = Path(__file__).parents[2] / "examples"
GPU = "gpu-0000-1b-00-0"
CGROUP = "kubepods.slice/cri-1.scope"


@pytest.fixture
def root(state: Path) -> Path:
    """The simulated host of the agent, with a cgroup hierarchy and a process in the cgroup of a container."""
    root = state / "simulated/hgx-h200"
    dra_simulate.build("hgx-h200", root)
    (root / "sys/fs/cgroup" / CGROUP).mkdir(parents=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    (root / "containers/41").mkdir(parents=True)
    (root / "containers/41/cgroup").write_text(f"0::/{CGROUP}\n")
    return root


def run_hook(cdi: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """Run the hook from the only CDI spec, as a container runtime does."""
    (path,) = cdi.glob("*.json")
    (device,) = json.loads(path.read_text())["devices"]
    (hook,) = device["containerEdits"]["hooks"]
    assert hook["hookName"] == "createRuntime"
    command = [hook["path"], *hook["args"][1:], "--proc", str(root / "containers")]
    return subprocess.run(command, input='{"pid": 41}', capture_output=True, text=True, timeout=120, check=False)


def json_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_driver_limits_the_cgroup_of_a_container(
    start: Start, state: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    flags = ("--simulate", "hgx-h200", "--config", str(config))
    agent = start(*flags).ready()
    connection = ("--state-dir", str(state))
    for file in ("classes/nvidia-share.yaml", "claims/small-model.yaml"):
        assert main(["claim", "apply", *connection, "-f", str(EXAMPLES / file)]) == 0
    capsys.readouterr()
    device = json_output(capsys, "claim", "get", "small-model", *connection)["devices"][0]["device"]

    result = run_hook(tmp_path / "cdi", root)
    assert (result.returncode, result.stderr) == (0, "")
    folder = str(root / "sys/fs/cgroup" / CGROUP)
    limits = nvml.read(root / "lib").memory_limits
    (limit,) = [limit for by_cgroup in limits.values() for path, limit in by_cgroup.items() if path == folder]
    assert (limit.soft, limit.hard) == (4 << 30, 4 << 30)

    address = device.removeprefix("gpu-").replace("-", ":", 2).replace("-", ".")
    inject.start_process(root, address, 4711, 3 << 30, cgroup=folder)
    (row,) = json_output(capsys, "claims", "--usage", *connection, "--config", str(config), "--simulate", "hgx-h200")
    assert (row["device"], row["claim"]) == (device, "default/small-model")
    assert (row["limit"], row["used"], row["counted_by"]) == (4 << 30, 3 << 30, "driver, per cgroup")
    assert main(["claims", "--usage", *connection, "--config", str(config), "--simulate", "hgx-h200"]) == 0
    assert "4096Mi, each container" in capsys.readouterr().out

    # Without an agent no limit can be set: the next container of the claim does not start until an agent runs.
    agent.end()
    refused = run_hook(tmp_path / "cdi", root)
    assert refused.returncode == 1 and "is it running?" in refused.stderr
    start(*flags).ready()
    assert run_hook(tmp_path / "cdi", root).returncode == 0
    assert main(["claim", "delete", "small-model", *connection]) == 0
    assert list((state / "limits").iterdir()) == []


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_the_remaining_agent_of_a_rolling_update_serves_hooks(
    kubernetes: Callable[..., AgentProcess],
    fake_api: FakeApi,
    kubelet_dir: Path,
    root: Path,
    tmp_path: Path,
    signal_number: signal.Signals,
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    uid = str(uuid.uuid4())
    result: dict[str, Any] = {"request": "gpu", "driver": "dra-agent.internal", "pool": "node-a/gpu", "device": GPU}
    result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": "4Gi"}}
    fake_api.put(
        "resourceclaims",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": "share", "uid": uid},
            "spec": {"devices": {}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        },
    )

    def agent(pod: str) -> AgentProcess:
        return kubernetes("--simulate", "hgx-h200", "--config", str(config), "--pod-uid", pod)

    async def scenario() -> None:
        older = agent("11111111-0000-4000-8000-000000000001")
        kubelet = FakeKubelet(kubelet_dir)
        try:
            response = await prepare(await kubelet.driver(), ("default", "share", uid))
            assert not response.error
            older.ready()
            newer = (await asyncio.to_thread(agent, "22222222-0000-4000-8000-000000000002")).ready()
            assert run_hook(tmp_path / "cdi", root).returncode == 0
            newer.end(signal_number)
            await eventually_async(
                lambda: run_hook(tmp_path / "cdi", root).returncode == 0,
                lambda: f"no container with a share can start: {run_hook(tmp_path / 'cdi', root).stderr}",
            )
        finally:
            await kubelet.close()

    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_a_limit_that_the_driver_refuses_fails_the_container_start(
    start: Start, state: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    start("--simulate", "hgx-h200", "--config", str(config)).ready()
    for file in ("classes/nvidia-share.yaml", "claims/small-model.yaml"):
        assert main(["claim", "apply", "--state-dir", str(state), "-f", str(EXAMPLES / file)]) == 0
    inject.fail(root, "nvmlDeviceSetMemoryLimits_v1", 4)
    refused = run_hook(tmp_path / "cdi", root)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "Insufficient Permissions" in line
    inject.clear(root)
    assert run_hook(tmp_path / "cdi", root).returncode == 0


DMEM = """\
[inventory]
[[inventory.share]]
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
enforcement = "dmem"
"""
OBJECTS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: amd-share}
spec:
  selectors:
  - cel: {expression: 'device.driver == "dra-agent.internal" && device.allowMultipleAllocations == true'}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: part, namespace: default}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: amd-share
        capacity: {requests: {memory: 24Gi}}
"""


def test_the_kernel_limits_an_amd_gpu(
    start: Start, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = state / "simulated/mi300x"
    host = dra_simulate.build("mi300x", root)
    tree = root / "sys/fs/cgroup"
    container = tree / CGROUP
    container.mkdir(parents=True)
    (tree / "cgroup.controllers").write_text("cpu dmem\n")
    for folder in (tree, tree / "kubepods.slice"):
        (folder / "cgroup.subtree_control").write_text("")
    (container / "dmem.max").write_text("")
    addresses = sorted(path.parent.name for path in host.sysfs.glob("bus/pci/devices/*/mem_info_vram_total"))
    regions = {address: f"drm/{address}/vram0" for address in addresses}
    (tree / "dmem.capacity").write_text("".join(f"{region} {192 << 30}\n" for region in regions.values()))
    (root / "containers/41").mkdir(parents=True)
    (root / "containers/41/cgroup").write_text(f"0::/{CGROUP}\n")
    config, objects = tmp_path / "config.toml", tmp_path / "objects.yaml"
    config.write_text(DMEM)
    objects.write_text(OBJECTS)

    start("--simulate", "mi300x", "--config", str(config)).ready()
    assert main(["claim", "apply", "--state-dir", str(state), "-f", str(objects)]) == 0
    capsys.readouterr()
    claim_ = json_output(capsys, "claim", "get", "part", "--state-dir", str(state))
    device = claim_["devices"][0]["device"]
    region = regions[device.removeprefix("gpu-").replace("-", ":", 2).replace("-", ".")]
    result = run_hook(tmp_path / "cdi", root)
    assert (result.returncode, result.stderr) == (0, "")
    assert (container / "dmem.max").read_text() == f"{region} {24 << 30}\n"
    # The claim has no process whose cgroup could be read.
    usage = ("claims", "--usage", "--state-dir", str(state), "--config", str(config), "--simulate", "mi300x")
    (row,) = json_output(capsys, *usage)
    assert (row["limit"], row["used"], row["counted_by"]) == (24 << 30, 0, "kernel, per cgroup")
