"""What goes wrong with slices of a GPU: an XID on a MIG instance, a GPU that is lost with all of them, and recovery."""

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
from cluster.test_health import taints, until_health
from dra_agent.inventory.nvidia.nvml_client import NvmlClient
from dra_agent.simulate import mig, nvml

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


def divide(host: Path, count: int) -> None:
    """Do what an administrator does with nvidia-smi: MIG mode on, and instances on the first GPU."""
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
    """Raise an XID on the instance that a device is."""
    start = int(device.rpartition("-")[2])
    found = [one.id for gpu in mig.read(agent.host).values() for one in gpu.gpu_instances if one.start == start]
    assert len(found) == 1
    agent.simulate("xid", GPU, str(number), "--instance", f"{found[0]}/0")


def versions(agent: Agent) -> dict[str, dict[str, str]]:
    return {item["metadata"]["name"]: item["metadata"] for item in agent.slices()}


def child_of(pid: int) -> int:
    """The agent's one child: the process of NVIDIA's library."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(one) for file in lists for one in file.read_text().split()]
    assert len(found) == 1, found
    return found[0]


def slices_of(agent: Agent) -> list[str]:
    """Those of the smallest profile; one with media engines has another."""
    wanted = re.compile(r"gpu-0000-1b-00-0-mig-1g-10gb-\d")
    return [name for name in agent.devices() if wanted.fullmatch(name)]


def test_an_xid_on_one_mig_instance_taints_that_instance_only(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, config: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    divide(agent.host, 3)
    namespace.api.wait(lambda: len(slices_of(agent)) == 3, "three slices are published")
    held = {}
    for name in ("hit", "spared"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
        namespace.running(name)
        held[name] = namespace.results(name)[0]["device"]
        until_health(namespace, name, "Healthy")

    raise_xid(agent, 31, held["hit"])  # a program's own fault: nothing follows
    raise_xid(agent, 94, held["hit"])
    namespace.api.wait(lambda: taints(agent, held["hit"]), "the slice is tainted")
    found = {name: [(one["key"], one["effect"]) for one in taints(agent, name)] for name in agent.devices()}
    assert {name: keys for name, keys in found.items() if keys} == {held["hit"]: [(CONTAINED, "NoSchedule")]}
    until_health(namespace, "hit", "Unhealthy")
    until_health(namespace, "spared", "Healthy")
    # Whoever has it keeps it, and the next claim gets the slice that is left.
    namespace.claim("next", request("slice", slices_class))
    namespace.pod("next", claim="next")
    namespace.running("next")
    assert namespace.results("next")[0]["device"] not in held.values()
    assert namespace.get_pod("hit")["status"]["phase"] == "Running"

    namespace.delete_pod("hit")
    namespace.gone("hit")
    namespace.delete_claim("hit")
    raise_xid(agent, 94, held["hit"])
    namespace.api.wait(lambda: taints(agent, held["hit"]), "the slice is tainted")
    namespace.kept_away(request("slice", slices_class))
    raise_xid(agent, 94, held["hit"])  # once more, so that it counts for a while
    namespace.claim("last", request("slice", slices_class))
    namespace.pod("last", claim="last")
    namespace.scheduled_never("last", "cannot allocate all claims")
    namespace.api.wait(lambda: not taints(agent, held["hit"]), "the taint is gone")
    namespace.running("last")
    assert namespace.results("last")[0]["device"] == held["hit"]


def test_a_lost_gpu_taints_all_its_slices_until_it_is_back(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, config: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    divide(agent.host, 3)
    namespace.api.wait(lambda: len(slices_of(agent)) == 3, "three slices are published")
    for name in ("one", "other"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
    namespace.running("one", "other")

    agent.simulate("fail", "--device", GPU, "--code", "15")
    namespace.gone("one", "other")
    tainted = {name: [(one["key"], one["effect"]) for one in taints(agent, name)] for name in agent.devices()}
    assert {name: keys for name, keys in tainted.items() if keys} == {
        name: [(LOST, "NoExecute")] for name in slices_of(agent)
    }, "all of this GPU, and no other"
    namespace.kept_away(request("slice", slices_class))
    namespace.claim("next", request("slice", slices_class))
    namespace.pod("next", claim="next")
    namespace.scheduled_never("next", "cannot allocate all claims")

    agent.simulate("clear")
    namespace.running("next")
    namespace.api.wait(lambda: not any(taints(agent, name) for name in slices_of(agent)), "no slice is tainted")
    metrics = agent.metrics()
    assert metrics['dra_agent_device_cause_begun_total{cause="gpu-lost"}'] == 3


def test_a_library_that_crashes_costs_no_claim_and_no_agent(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, config: Path
) -> None:
    """The process that has NVIDIA's library dies; the agent goes on, prepares, and hears of XIDs again."""
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    divide(agent.host, 2)
    namespace.api.wait(lambda: len(slices_of(agent)) == 2, "two slices are published")
    before = {name: item["resourceVersion"] for name, item in versions(agent).items()}
    pid = agent.process.pid
    library = child_of(pid)
    os.kill(library, signal.SIGSEGV)
    namespace.claim("one", request("slice", slices_class))
    namespace.pod("one", claim="one")
    namespace.running("one")
    agent.wait_for_log("NVML has failed and is started again.*SIGSEGV")
    # Who asks for events hears of those from then on: an XID before that is told to nobody.
    agent.wait_for_log("XIDs of the time before NVML was started again are not known")
    assert agent.process.pid == pid and child_of(pid) != library
    assert {name: item["resourceVersion"] for name, item in versions(agent).items()} == before, "nothing is written"
    device = namespace.results("one")[0]["device"]
    raise_xid(agent, 94, device)
    namespace.api.wait(lambda: taints(agent, device), "the slice is tainted")


DIVIDED = """\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID in ["0000:1b:00.0", "0000:43:00.0"]']

[[inventory.partition]]
mode = "mig"
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"'
"""


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    """A configuration by which partitions of the first GPU are made when claims ask for them."""
    (tmp_path / "divided.toml").write_text(SETTINGS + DIVIDED)
    return tmp_path / "divided.toml"


def tainted(agent: Agent) -> dict[str, list[tuple[str, str]]]:
    """What is wrong with devices, by those that anything is wrong with."""
    devices = agent.devices().items()
    return {name: [(one["key"], one["effect"]) for one in item["taints"]] for name, item in devices if "taints" in item}


def test_what_happens_to_an_instance_that_was_made_for_a_claim_is_its_partitions_alone(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, divided: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(divided))
    assert len(slices_of(agent)) == 7
    held = {}
    for name in ("hit", "spared"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
        namespace.running(name)
        held[name] = namespace.results(name)[0]["device"]
    raise_xid(agent, 94, held["hit"])
    namespace.api.wait(lambda: taints(agent, held["hit"]), "the partition is tainted")
    assert tainted(agent) == {held["hit"]: [(CONTAINED, "NoSchedule")]}, "no partition that lies over it, either"
    until_health(namespace, "hit", "Unhealthy")
    until_health(namespace, "spared", "Healthy")
    namespace.api.wait(lambda: not tainted(agent), "the taint is gone")

    # One that is about the GPU is about everything that it could be divided into, and about no other GPU.
    raise_xid(agent, 48, held["hit"])
    everything = {name for name in agent.devices() if name.startswith("gpu-0000-1b-00-0")}
    namespace.api.wait(lambda: tainted(agent).keys() == everything, "all of the GPU is tainted")


def test_a_lost_gpu_taints_whole_and_partitions_until_it_is_back(
    start_agent: StartAgent, namespace: Namespace, slices_class: str, divided: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(divided))
    for name in ("one", "other"):
        namespace.claim(name, request("slice", slices_class))
        namespace.pod(name, claim=name)
    namespace.running("one", "other")
    everything = {name for name in agent.devices() if name.startswith("gpu-0000-1b-00-0")}

    agent.simulate("fail", "--device", GPU, "--code", "15")
    namespace.api.wait(lambda: tainted(agent).keys() == everything, "all of the GPU is tainted")
    namespace.api.wait(
        lambda: {keys[0] for keys in tainted(agent).values()} == {(LOST, "NoExecute")}, "the loss is confirmed"
    )
    doomed = ("one", "other")
    namespace.api.wait(
        lambda: all("deletionTimestamp" in (pod.get("metadata", {})) for pod in pods(namespace, *doomed)),
        "both pods are evicted",
    )
    assert tainted(agent).keys() == everything, "what is taken back of them takes no device away"
    # A lost GPU comes back by a reset: never with the instances that it had.
    agent.simulate("reset", GPU)
    agent.simulate("clear")
    namespace.gone(*doomed)
    namespace.api.wait(lambda: not tainted(agent), "the taints are gone")
    namespace.claim("next", request("slice", slices_class))
    namespace.pod("next", claim="next")
    namespace.running("next")
    assert [len(one.gpu_instances) for one in mig.read(agent.host).values() if one.gpu_instances] == [1]


def pods(namespace: Namespace, *names: str) -> list[Object]:
    """Those that are still there."""
    found = [namespace.api.find(PODS, name, namespace.name) for name in names]
    return [pod for pod in found if pod]
