"""Health of MIG partitions: an XID on one instance, a lost GPU with all its instances, and recovery."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLASSES, PODS, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request
from cluster.test_health import taints, wait_for_health
from dra_agent.inventory.nvidia.nvml_client import NvmlClient
from dra_simulate import mig, nvml

GPU = "0000:1b:00.0"
ONE_G = 19
LOST = f"{DRIVER}/gpu-lost"
CONTAINED = f"{DRIVER}/xid-94"

SETTINGS = """\
[health]
recovery_seconds = 2
event_seconds = 30
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "agent.toml").write_text(SETTINGS)
    return tmp_path / "agent.toml"


@pytest.fixture
def slices_class(cluster: Cluster) -> Iterator[str]:
    """A DeviceClass of the smallest MIG instances."""
    mine = f'device.driver == "{DRIVER}"'
    kind = f'device.attributes["{DRIVER}"].?profile.orValue("") == "1g.10gb"'
    spec = {"selectors": [{"cel": {"expression": f"{mine} && {kind}"}}]}
    cluster.api.create(CLASSES, {"metadata": {"name": "one-g"}, "spec": spec})
    yield "one-g"
    cluster.api.delete(CLASSES, "one-g")


def create_mig_instances(host: Path, count: int) -> None:
    """Enable MIG mode and create instances on the first GPU, as an administrator does with nvidia-smi."""
    library = NvmlClient(host / "lib" / nvml.LIBRARY, 20.0)
    library.start()
    bus = f"0000{GPU.upper()}".encode()
    gpu = library.call("nvmlDeviceGetHandleByPciBusId", bus)
    library.call("nvmlDeviceSetMigMode", gpu, 1)
    for start in range(count):
        place = library.module.c_nvmlGpuInstancePlacement_t(start, 1)
        made = library.call("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, ONE_G, ctypes.byref(place))
        library.call("nvmlGpuInstanceCreateComputeInstance", made, 0)
    library.close()


def raise_xid(agent: Agent, number: int, device: str) -> None:
    """Raise an XID on the instance of a device."""
    start = int(device.rpartition("-")[2])
    found = [one.id for gpu in mig.read(agent.host).values() for one in gpu.gpu_instances if one.start == start]
    assert len(found) == 1
    agent.simulate("xid", GPU, str(number), "--instance", f"{found[0]}/0")


def versions(agent: Agent) -> dict[str, dict[str, str]]:
    return {item["metadata"]["name"]: item["metadata"] for item in agent.slices()}


def child_of(pid: int) -> int:
    """Return the agent's one child: the NVML worker process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(one) for file in lists for one in file.read_text().split()]
    assert len(found) == 1, found
    return found[0]


def slices_of(agent: Agent) -> list[str]:
    """Return the devices of the smallest profile; the variant with media engines is a different profile."""
    wanted = re.compile(r"gpu-0000-1b-00-0-mig-1g-10gb-\d")
    return [name for name in agent.devices() if wanted.fullmatch(name)]


def test_xid_of_one_mig_instance_taints_only_that_instance(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, config: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    create_mig_instances(agent.host, 3)
    namespace.api.wait(lambda: len(slices_of(agent)) == 3, "three slices are published")
    devices_by_claim = {}
    for name in ("hit", "spared"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
        namespace.running(name)
        devices_by_claim[name] = namespace.results(name)[0]["device"]
        wait_for_health(namespace, name, "Healthy")

    raise_xid(agent, 31, devices_by_claim["hit"])  # an application error: no taint
    raise_xid(agent, 94, devices_by_claim["hit"])
    namespace.api.wait(lambda: taints(agent, devices_by_claim["hit"]), "the slice is tainted")
    found = {name: [(one["key"], one["effect"]) for one in taints(agent, name)] for name in agent.devices()}
    assert {name: keys for name, keys in found.items() if keys} == {
        devices_by_claim["hit"]: [(CONTAINED, "NoSchedule")]
    }
    wait_for_health(namespace, "hit", "Unhealthy")
    wait_for_health(namespace, "spared", "Healthy")
    # The holder keeps it, and the next claim gets the remaining instance.
    namespace.claim("next", request("slice", slices_class))
    namespace.pod("next", claim="next")
    namespace.running("next")
    assert namespace.results("next")[0]["device"] not in devices_by_claim.values()
    assert namespace.get_pod("hit")["status"]["phase"] == "Running"

    namespace.delete_pod("hit")
    namespace.wait_until_deleted("hit")
    namespace.delete_claim("hit")
    raise_xid(agent, 94, devices_by_claim["hit"])
    namespace.api.wait(lambda: taints(agent, devices_by_claim["hit"]), "the slice is tainted")
    namespace.wait_until_no_device(request("slice", slices_class))
    raise_xid(agent, 94, devices_by_claim["hit"])  # a second event extends the taint
    namespace.claim("last", request("slice", slices_class))
    namespace.pod("last", claim="last")
    namespace.wait_for_scheduling_failure("last", "cannot allocate all claims")
    namespace.api.wait(lambda: not taints(agent, devices_by_claim["hit"]), "the taint is gone")
    namespace.running("last")
    assert namespace.results("last")[0]["device"] == devices_by_claim["hit"]


def test_lost_gpu_taints_all_its_mig_instances_until_it_is_back(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, config: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    create_mig_instances(agent.host, 3)
    namespace.api.wait(lambda: len(slices_of(agent)) == 3, "three slices are published")
    for name in ("one", "other"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
    namespace.running("one", "other")

    agent.simulate("fail", "--device", GPU, "--code", "15")
    namespace.wait_until_deleted("one", "other")
    tainted = {name: [(one["key"], one["effect"]) for one in taints(agent, name)] for name in agent.devices()}
    assert {name: keys for name, keys in tainted.items() if keys} == {
        name: [(LOST, "NoExecute")] for name in slices_of(agent)
    }, "all instances of this GPU, and no other"
    namespace.wait_until_no_device(request("slice", slices_class))
    namespace.claim("next", request("slice", slices_class))
    namespace.pod("next", claim="next")
    namespace.wait_for_scheduling_failure("next", "cannot allocate all claims")

    agent.simulate("clear")
    namespace.running("next")
    namespace.api.wait(lambda: not any(taints(agent, name) for name in slices_of(agent)), "no slice is tainted")
    metrics = agent.metrics()
    assert metrics['dra_agent_device_cause_begun_total{cause="gpu-lost"}'] == 3


def test_nvml_crash_affects_neither_claims_nor_agent(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, config: Path
) -> None:
    """The NVML worker process dies; the agent continues, prepares claims, and receives XIDs again."""
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    create_mig_instances(agent.host, 2)
    namespace.api.wait(lambda: len(slices_of(agent)) == 2, "two slices are published")
    before = {name: item["resourceVersion"] for name, item in versions(agent).items()}
    pid = agent.process.pid
    library = child_of(pid)
    os.kill(library, signal.SIGSEGV)
    namespace.claim("one", request("slice", slices_class))
    namespace.pod("one", claim="one")
    namespace.running("one")
    agent.wait_for_log("NVML has failed and is started again.*SIGSEGV")
    # A subscriber receives later events only: an XID before the subscription is lost.
    agent.wait_for_log("XIDs of the time before NVML was started again are not known")
    assert agent.process.pid == pid and child_of(pid) != library
    assert {name: item["resourceVersion"] for name, item in versions(agent).items()} == before, "nothing is written"
    device = namespace.results("one")[0]["device"]
    raise_xid(agent, 94, device)
    namespace.api.wait(lambda: taints(agent, device), "the slice is tainted")


PARTITIONED = """\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID in ["0000:1b:00.0", "0000:43:00.0"]']

[[inventory.partition]]
mode = "mig"
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"'
"""


@pytest.fixture
def partitioned_config(tmp_path: Path) -> Path:
    """A configuration that creates partitions of the first GPU on demand."""
    (tmp_path / "divided.toml").write_text(SETTINGS + PARTITIONED)
    return tmp_path / "divided.toml"


def tainted(agent: Agent) -> dict[str, list[tuple[str, str]]]:
    """Return the taints of every tainted device."""
    devices = agent.devices().items()
    return {name: [(one["key"], one["effect"]) for one in item["taints"]] for name, item in devices if "taints" in item}


def test_xid_of_a_dynamic_instance_taints_only_its_partition(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, partitioned_config: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(partitioned_config))
    assert len(slices_of(agent)) == 7
    devices_by_claim = {}
    for name in ("hit", "spared"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
        namespace.running(name)
        devices_by_claim[name] = namespace.results(name)[0]["device"]
    raise_xid(agent, 94, devices_by_claim["hit"])
    namespace.api.wait(lambda: taints(agent, devices_by_claim["hit"]), "the partition is tainted")
    assert tainted(agent) == {devices_by_claim["hit"]: [(CONTAINED, "NoSchedule")]}, (
        "overlapping partitions are not tainted"
    )
    wait_for_health(namespace, "hit", "Unhealthy")
    wait_for_health(namespace, "spared", "Healthy")
    namespace.api.wait(lambda: not tainted(agent), "the taint is gone")

    # An XID about the GPU taints all its possible partitions, and no other GPU.
    raise_xid(agent, 48, devices_by_claim["hit"])
    gpu_and_partitions = {name for name in agent.devices() if name.startswith("gpu-0000-1b-00-0")}
    namespace.api.wait(lambda: tainted(agent).keys() == gpu_and_partitions, "all of the GPU is tainted")


def test_lost_gpu_taints_whole_and_partitions_until_it_is_back(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, partitioned_config: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(partitioned_config))
    for name in ("one", "other"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
    namespace.running("one", "other")
    gpu_and_partitions = {name for name in agent.devices() if name.startswith("gpu-0000-1b-00-0")}

    agent.simulate("fail", "--device", GPU, "--code", "15")
    namespace.api.wait(lambda: tainted(agent).keys() == gpu_and_partitions, "all of the GPU is tainted")
    namespace.api.wait(
        lambda: {keys[0] for keys in tainted(agent).values()} == {(LOST, "NoExecute")}, "the loss is confirmed"
    )
    evicted = ("one", "other")
    namespace.api.wait(
        lambda: all("deletionTimestamp" in (pod.get("metadata", {})) for pod in pods(namespace, *evicted)),
        "both pods are evicted",
    )
    assert tainted(agent).keys() == gpu_and_partitions, "releasing their claims withdraws no device"
    # A lost GPU returns after a reset: never with the instances that it had.
    agent.simulate("reset", GPU)
    agent.simulate("clear")
    namespace.wait_until_deleted(*evicted)
    namespace.api.wait(lambda: not tainted(agent), "the taints are gone")
    namespace.claim("next", request("slice", slices_class))
    namespace.pod("next", claim="next")
    namespace.running("next")
    assert [len(one.gpu_instances) for one in mig.read(agent.host).values() if one.gpu_instances] == [1]


def pods(namespace: Namespace, *names: str) -> list[Object]:
    """Return those that still exist."""
    found = [namespace.api.find(PODS, name, namespace.name) for name in names]
    return [pod for pod in found if pod]
