"""A real agent on a simulated host whose driver limits memory by cgroup: from the claim to the limit and its use."""

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

from agent.conftest import AgentProcess, Start
from agent.test_kubernetes_mode import kubernetes, prepare
from dra_agent import simulate
from dra_agent.cli.main import main
from dra_agent.simulate import inject, nvml
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
    """The agent's simulated host, with a cgroup hierarchy and a process in a container's cgroup."""
    root = state / "simulated/hgx-h200"
    simulate.build("hgx-h200", root)
    (root / "sys/fs/cgroup" / CGROUP).mkdir(parents=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    (root / "containers/41").mkdir(parents=True)
    (root / "containers/41/cgroup").write_text(f"0::/{CGROUP}\n")
    return root


def run_hook(cdi: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """Run the hook of the one claim's spec as a runtime would."""
    (path,) = cdi.glob("*.json")
    (device,) = json.loads(path.read_text())["devices"]
    (hook,) = device["containerEdits"]["hooks"]
    assert hook["hookName"] == "createRuntime"
    command = [hook["path"], *hook["args"][1:], "--proc", str(root / "containers")]
    return subprocess.run(command, input='{"pid": 41}', capture_output=True, text=True, timeout=120, check=False)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_driver_limits_a_containers_cgroup_and_counts_for_it(
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
    device = answer(capsys, "claim", "get", "small-model", *connection)["devices"][0]["device"]

    done = run_hook(tmp_path / "cdi", root)
    assert (done.returncode, done.stderr) == (0, "")
    folder = str(root / "sys/fs/cgroup" / CGROUP)
    limits = nvml.read(root / "lib").memory_limits
    (limit,) = [limit for by_cgroup in limits.values() for path, limit in by_cgroup.items() if path == folder]
    assert (limit.soft, limit.hard) == (4 << 30, 4 << 30)

    address = device.removeprefix("gpu-").replace("-", ":", 2).replace("-", ".")
    inject.start_process(root, address, 4711, 3 << 30, cgroup=folder)
    (row,) = answer(capsys, "claims", "--usage", *connection, "--config", str(config), "--simulate", "hgx-h200")
    assert (row["device"], row["claim"]) == (device, "default/small-model")
    assert (row["limit"], row["used"], row["counted_by"]) == (4 << 30, 3 << 30, "driver, per cgroup")
    assert main(["claims", "--usage", *connection, "--config", str(config), "--simulate", "hgx-h200"]) == 0
    assert "4096Mi, each container" in capsys.readouterr().out

    # Nobody is there who could limit: the next container of the claim does not start, until somebody is again.
    agent.end()
    refused = run_hook(tmp_path / "cdi", root)
    assert refused.returncode == 1 and "is it running?" in refused.stderr
    start(*flags).ready()
    assert run_hook(tmp_path / "cdi", root).returncode == 0
    assert main(["claim", "delete", "small-model", *connection]) == 0
    assert list((state / "limits").iterdir()) == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_agent_that_is_left_of_a_rolling_update_answers_hooks_again(
    kubernetes: Callable[..., AgentProcess],
    fake_api: FakeApi,
    kubelet_dir: Path,
    root: Path,
    tmp_path: Path,
    end: signal.Signals,
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
            answer = await prepare(await kubelet.driver(), ("default", "share", uid))
            assert not answer.error
            older.ready()
            newer = (await asyncio.to_thread(agent, "22222222-0000-4000-8000-000000000002")).ready()
            assert run_hook(tmp_path / "cdi", root).returncode == 0
            newer.end(end)
            await eventually_async(
                lambda: run_hook(tmp_path / "cdi", root).returncode == 0,
                lambda: f"no container with a share can start any more: {run_hook(tmp_path / 'cdi', root).stderr}",
            )
        finally:
            await kubelet.close()

    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_what_the_driver_refuses_keeps_a_container_from_starting(
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


def test_the_kernel_limits_an_amd_gpu_and_counts_for_it(
    start: Start, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = state / "simulated/mi300x"
    host = simulate.build("mi300x", root)
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
    found = answer(capsys, "claim", "get", "part", "--state-dir", str(state))
    device = found["devices"][0]["device"]
    region = regions[device.removeprefix("gpu-").replace("-", ":", 2).replace("-", ".")]
    done = run_hook(tmp_path / "cdi", root)
    assert (done.returncode, done.stderr) == (0, "")
    assert (container / "dmem.max").read_text() == f"{region} {24 << 30}\n"
    # No process of the claim is there whose cgroup could be asked.
    usage = ("claims", "--usage", "--state-dir", str(state), "--config", str(config), "--simulate", "mi300x")
    (row,) = answer(capsys, *usage)
    assert (row["limit"], row["used"], row["counted_by"]) == (24 << 30, 0, "kernel, per cgroup")
