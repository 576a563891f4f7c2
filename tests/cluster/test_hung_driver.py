"""The driver of one GPU hangs in the kernel while it is unbound: everything else goes on, also after a restart."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.cluster import Cluster
from cluster.kube.driven import DrivenMachine, machine
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_passthrough import handovers, passthrough
from dra_agent.simulate import inject

PROFILE = "l40s"
SICK, OTHERS = "0000:41:00.0", ("0000:01:00.0", "0000:81:00.0", "0000:c1:00.0")
SETTINGS = f"""\
[[inventory.passthrough]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{SICK}"'
"""
LOST, GPU_IS_LOST = f"{DRIVER}/gpu-lost", 15
"""The taint, and what NVML says of such a GPU."""
TIMES = 3
"""How often the same is measured."""
USUAL = 4.0
"""How many times as long as before something may take that goes on as usual: other work of the machine varies."""


@pytest.fixture
def driven(cluster: Cluster) -> Iterator[DrivenMachine]:
    with machine(cluster.node("node-a").directory / "driven", PROFILE, SICK) as made:
        yield made


def usual_time(namespace: Namespace, name: str) -> float:
    """Run pods with one of the other GPUs, one after the other: seconds from its creation until a pod runs."""
    took = []
    for number in range(TIMES):
        pod = f"{name}-{number}"
        namespace.template(pod, request("gpu", "gpu"))
        began = time.monotonic()
        namespace.pod(pod, template=pod, node="node-a")
        namespace.running(pod)
        took.append(time.monotonic() - began)
        namespace.delete_pod(pod)
        namespace.gone(pod)
    return statistics.median(took)


def waiting(driven: DrivenMachine) -> dict[int, str]:
    """The processes that wait in the kernel for the device: what they access, by their id."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "dra_agent.device_setup.sysfs_writer" in words and str(driven.roots) in words[-2]:
                found[int(process.name)] = words[-2].rpartition("/")[2]
    return found


def is_tainted(agent: Agent, address: str) -> bool:
    (device,) = (body for name, body in agent.devices().items() if address.replace(":", "-").replace(".", "-") in name)
    return any(taint["key"] == LOST for taint in device.get("taints", []))


def health_goes_on(agent: Agent, driven: DrivenMachine, address: str) -> None:
    """Another GPU falls off the bus: a look at its health finds it, and a slice is written."""
    assert not is_tainted(agent, address)
    inject.fail(driven.root, None, GPU_IS_LOST, address)
    until(lambda: is_tainted(agent, address), f"{address} is tainted")


def test_a_hung_unbind_holds_up_its_own_claim_only_also_through_a_restart(
    start_agent: StartAgent, namespace: Namespace, driven: DrivenMachine, tmp_path: Path
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(SETTINGS)
    flags = ("--config", str(config), *driven.flags)
    agent = start_agent("node-a", None, *flags, environment=driven.environment)
    before = usual_time(namespace, "before")

    with driven.hang():
        passthrough(namespace, "sick", SICK)
        namespace.pod("machine", claim="sick")
        until(lambda: list(waiting(driven).values()) == ["unbind"], "the kernel does not return from the unbind")
        (writer,) = waiting(driven)
        during = usual_time(namespace, "during")
        assert during < USUAL * before * agent.node.api.pace(), (
            f"another GPU's pod: {before:.1f} s before, {during:.1f} s during the hang"
        )
        said = "the kernel has not returned from a write to unbind"
        until(lambda: any(said in event for event in namespace.events("machine")), "the pod's events say what hangs")
        assert waiting(driven) == {writer: "unbind"}, "nothing more is asked about the device meanwhile"
        health_goes_on(agent, driven, OTHERS[0])

        assert agent.end() == 0, "the hang does not keep the agent from stopping"
        os.kill(writer, signal.SIGKILL)
        agent.start().ready()
        assert driven.driver == "nvidia" and writer in waiting(driven), "it hangs still, whatever is sent to it"
        after = usual_time(namespace, "after")
        assert after < USUAL * before * agent.node.api.pace(), (
            f"another GPU's pod: {before:.1f} s before, {after:.1f} s after the restart"
        )
        until(lambda: "driver_override" in waiting(driven).values(), "the new agent has found the device stuck")
        health_goes_on(agent, driven, OTHERS[1])
        assert namespace.get_pod("machine")["status"]["phase"] == "Pending"
        assert len(waiting(driven)) == 2, f"one process for each agent: {waiting(driven)}"

    namespace.running("machine")
    assert driven.driver == "vfio-pci" and waiting(driven) == {}
    group = (driven.root / "sys/bus/pci/devices" / SICK / "iommu_group").resolve().name
    assert f"/dev/vfio/{group}" in namespace.execute("machine", "find /dev/vfio").split()
    namespace.delete_pod("machine")
    namespace.gone("machine")
    until(lambda: driven.driver == "nvidia" and not handovers(agent), "the device is back")
    assert "Traceback" not in agent.said(this_life=False)
