"""The driver of one GPU hangs in the kernel during unbind: all other devices work, also after an agent restart."""

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
from cluster.kube.hangable_machine import HangableMachine, hangable_machine
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_passthrough import passthrough, vfio_bindings
from dra_simulate import inject

PROFILE = "l40s"
HUNG_GPU, OTHER_GPUS = "0000:41:00.0", ("0000:01:00.0", "0000:81:00.0", "0000:c1:00.0")
SETTINGS = f"""\
[[inventory.passthrough]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{HUNG_GPU}"'
"""
LOST, GPU_IS_LOST = f"{DRIVER}/gpu-lost", 15
"""The taint, and NVML's error code for a lost GPU."""
MEASUREMENTS = 3
"""Number of measurements."""
MAX_SLOWDOWN = 4.0
"""Allowed slowdown of unaffected pods compared with the baseline: the load of the machine varies."""


@pytest.fixture
def machine(cluster: Cluster) -> Iterator[HangableMachine]:
    with hangable_machine(cluster.node("node-a").directory / "driven", PROFILE, HUNG_GPU) as created:
        yield created


def pod_start_time(namespace: Namespace, name: str) -> float:
    """Run pods with one of the other GPUs one after the other; return the median seconds from creation to Running."""
    durations = []
    for number in range(MEASUREMENTS):
        pod = f"{name}-{number}"
        namespace.template(pod, request("gpu", "gpu"))
        began = time.monotonic()
        namespace.pod(pod, template=pod, node="node-a")
        namespace.running(pod)
        durations.append(time.monotonic() - began)
        namespace.delete_pod(pod)
        namespace.wait_until_deleted(pod)
    return statistics.median(durations)


def waiting(machine: HangableMachine) -> dict[int, str]:
    """Return the processes that wait in the kernel for the device, by id, with the file that they access."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "dra_agent.device_setup.sysfs_writer" in words and str(machine.roots) in words[-2]:
                found[int(process.name)] = words[-2].rpartition("/")[2]
    return found


def is_tainted(agent: Agent, address: str) -> bool:
    (device,) = (body for name, body in agent.devices().items() if address.replace(":", "-").replace(".", "-") in name)
    return any(taint["key"] == LOST for taint in device.get("taints", []))


def assert_health_is_monitored(agent: Agent, machine: HangableMachine, address: str) -> None:
    """Fail another GPU: the health poll taints it, and a slice is written."""
    assert not is_tainted(agent, address)
    inject.fail(machine.root, None, GPU_IS_LOST, address)
    until(lambda: is_tainted(agent, address), f"{address} is tainted")


def test_hung_unbind_blocks_only_its_claim_also_after_restart(
    start_agent: StartAgent, namespace: Namespace, machine: HangableMachine, tmp_path: Path
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(SETTINGS)
    flags = ("--config", str(config), *machine.flags)
    agent = start_agent("node-a", None, *flags, environment=machine.environment)
    before = pod_start_time(namespace, "before")

    with machine.hang():
        passthrough(namespace, "sick", HUNG_GPU)
        namespace.pod("machine", claim="sick")
        until(lambda: list(waiting(machine).values()) == ["unbind"], "the kernel does not return from the unbind")
        (writer,) = waiting(machine)
        during = pod_start_time(namespace, "during")
        assert during < MAX_SLOWDOWN * before * agent.node.api.slowdown(), (
            f"another GPU's pod: {before:.1f} s before, {during:.1f} s during the hang"
        )
        message = "a write to unbind has not returned"
        until(
            lambda: any(message in event for event in namespace.events("machine")),
            "the pod's events name the hung write",
        )
        assert waiting(machine) == {writer: "unbind"}, "no further access to the device meanwhile"
        assert_health_is_monitored(agent, machine, OTHER_GPUS[0])

        assert agent.end() == 0, "the agent stops in spite of the hang"
        os.kill(writer, signal.SIGKILL)
        agent.start().ready()
        assert machine.driver == "nvidia" and writer in waiting(machine), "SIGKILL does not end the hung write"
        after = pod_start_time(namespace, "after")
        assert after < MAX_SLOWDOWN * before * agent.node.api.slowdown(), (
            f"another GPU's pod: {before:.1f} s before, {after:.1f} s after the restart"
        )
        until(lambda: "driver_override" in waiting(machine).values(), "the new agent has found the device hung")
        assert_health_is_monitored(agent, machine, OTHER_GPUS[1])
        assert namespace.get_pod("machine")["status"]["phase"] == "Pending"
        assert len(waiting(machine)) == 2, f"one process for each agent: {waiting(machine)}"

    namespace.running("machine")
    assert machine.driver == "vfio-pci" and waiting(machine) == {}
    group = (machine.root / "sys/bus/pci/devices" / HUNG_GPU / "iommu_group").resolve().name
    assert f"/dev/vfio/{group}" in namespace.execute("machine", "find /dev/vfio").split()
    namespace.delete_pod("machine")
    namespace.wait_until_deleted("machine")
    until(lambda: machine.driver == "nvidia" and not vfio_bindings(agent), "the device is back")
    assert "Traceback" not in agent.read_log(current_run=False)
