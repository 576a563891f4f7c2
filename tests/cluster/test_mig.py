"""MIG partitions on a real cluster: created for the claims of pods and destroyed after them.

Two of a node's eight H100 are published, as whole GPUs and as every partition.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.workload import Namespace, opaque, request
from dra_simulate import mig

HARDWARE = {"node-a": "dgx-h100"}
AGENT_CONFIG = """\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID in ["0000:1b:00.0", "0000:43:00.0"]']

[[inventory.partition]]
mode = "mig"
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
"""
FIRST, SECOND = "0000:1b:00.0", "0000:43:00.0"
GPU = "gpu-0000-1b-00-0"

Agents = dict[str, Agent]


def gpu_selector(profile: str | None, address: str = FIRST) -> str:
    """Return a selector of one profile, or of the whole GPU, on one GPU."""
    selector = f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'
    if profile is None:
        return selector
    return f'{selector} && device.attributes["{DRIVER}"].profile == "{profile}"'


def start(namespace: Namespace, name: str, profile: str | None, address: str = FIRST) -> None:
    """Create a claim for a partition (or, without a profile, for the whole GPU), and a pod with it."""
    device_class = "gpu" if profile is None else "mig"
    namespace.claim(name, request("gpu", device_class, gpu_selector(profile, address)))
    namespace.pod(name, claim=name)


def stop(namespace: Namespace, *names: str) -> None:
    for name in names:
        namespace.delete_pod(name)
    namespace.wait_until_deleted(*names)
    for name in names:
        namespace.delete_claim(name)


def placement(namespace: Namespace, claim: str) -> str:
    """Return the placement that the scheduler allocated, without the GPU's name."""
    (result,) = namespace.results(claim)
    device: str = result["device"]
    return device.removeprefix(f"{GPU}-mig-")


def instance_profiles(agent: Agent) -> list[int]:
    """Return the profiles of the instances on the host that have a compute instance."""
    layouts = mig.read(agent.host)
    return sorted(one.profile for gpu in layouts.values() for one in gpu.gpu_instances if one.compute_instances)


def in_mig_mode(agent: Agent) -> set[str]:
    return {uuid for uuid, gpu in mig.read(agent.host).items() if gpu.mode}


def assert_nothing_left(agents: Agents) -> None:
    layouts = mig.read(agents["node-a"].host)
    assert not [one for gpu in layouts.values() for one in gpu.gpu_instances]
    assert not list((agents["node-a"].host.parents[1] / "mig").glob("*"))


def wait_until_unschedulable(namespace: Namespace, pod: str) -> None:
    namespace.api.wait(
        lambda: any("FailedScheduling" in event for event in namespace.events(pod)), f"the scheduler cannot place {pod}"
    )
    assert namespace.results(pod) == []


def test_seven_smallest_partitions_fit_on_a_gpu(
    agents: Agents, namespace: Namespace, agent_command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    names = [f"s{number}" for number in range(7)]
    for name in names:
        start(namespace, name, "1g.10gb")
    namespace.running(*names)
    assert {placement(namespace, name) for name in names} == {f"1g-10gb-{slice_}" for slice_ in range(7)}
    assert instance_profiles(agents["node-a"]) == [19] * 7
    uuids = set()
    for name in names:
        device = f"{GPU}-mig-{placement(namespace, name)}"
        variable = f"DRA_AGENT_DEVICE_{device.replace('-', '_').upper()}_UUID"
        uuids.add(namespace.environment(name)[variable])
        nodes = namespace.execute(name, "ls /dev/nvidia-caps; ls -d /dev/nvidia0 /dev/nvidia1 2>/dev/null || true")
        assert len([line for line in nodes.split() if line.startswith("nvidia-cap")]) == 2
        assert "/dev/nvidia0" in nodes.split()
        assert "/dev/nvidia1" not in nodes.split()
    assert len(uuids) == 7

    start(namespace, "s7", "1g.10gb")
    wait_until_unschedulable(namespace, "s7")
    kubeconfig = str(namespace.cluster.kubeconfig)
    explanation = agent_command(
        "explain", "claim", "s7", "-n", namespace.name, "--kubeconfig", kubeconfig, "-o", "json", check=False
    )
    assert explanation.returncode == 1
    assert f"counter {GPU}/memory-slice-6 has 0 left, 1 are needed" in explanation.stdout

    stop(namespace, "s3")
    namespace.running("s7")
    assert instance_profiles(agents["node-a"]) == [19] * 7
    stop(namespace, "s7", *(name for name in names if name != "s3"))
    assert_nothing_left(agents)


def test_placements_limit_which_profiles_fit(agents: Agents, namespace: Namespace) -> None:
    for name in ("three", "other"):
        start(namespace, name, "3g.40gb")
    namespace.running("three", "other")
    assert {placement(namespace, name) for name in ("three", "other")} == {"3g-40gb-0", "3g-40gb-4"}
    start(namespace, "one", "1g.10gb")
    wait_until_unschedulable(namespace, "one")
    # The partition at slices 0 to 3 is deleted: a 2g and two 1g fit next to the other one.
    low = next(name for name in ("three", "other") if placement(namespace, name) == "3g-40gb-0")
    stop(namespace, low)
    start(namespace, "two", "2g.20gb")
    start(namespace, "last", "1g.10gb")
    namespace.running("one", "two", "last")
    assert instance_profiles(agents["node-a"]) == [9, 14, 19, 19]
    high = ({"three", "other"} - {low}).pop()
    stop(namespace, high, "one", "two", "last")
    assert_nothing_left(agents)


def test_one_gpu_is_filled_before_the_next(agents: Agents, namespace: Namespace) -> None:
    """The claims name no GPU: the published order alone decides the placement."""
    expected = [
        ("3g.40gb", f"{GPU}-mig-3g-40gb-4"),
        *(("1g.10gb", f"{GPU}-mig-1g-10gb-{slice_}") for slice_ in (3, 2, 1, 0)),
        ("1g.10gb", "gpu-0000-43-00-0-mig-1g-10gb-6"),
    ]
    for number, (profile, device) in enumerate(expected):
        name = f"f{number}"
        namespace.claim(name, request("gpu", "mig", f'device.attributes["{DRIVER}"].profile == "{profile}"'))
        namespace.pod(name, claim=name)
        namespace.running(name)
        (result,) = namespace.results(name)
        assert result["device"] == device
    stop(namespace, *(f"f{number}" for number in range(len(expected))))
    assert_nothing_left(agents)


def test_whole_gpu_waits_for_partitions_and_is_reused(agents: Agents, namespace: Namespace) -> None:
    start(namespace, "slice", "1g.10gb")
    namespace.running("slice")
    before = in_mig_mode(agents["node-a"])
    start(namespace, "whole", None)
    wait_until_unschedulable(namespace, "whole")
    stop(namespace, "slice")
    namespace.running("whole")
    assert placement(namespace, "whole") == GPU
    after = in_mig_mode(agents["node-a"])
    assert after < before and len(before - after) == 1, (
        "only this GPU leaves MIG mode; other tests determine the others"
    )
    start(namespace, "slice-again", "1g.10gb")
    wait_until_unschedulable(namespace, "slice-again")
    stop(namespace, "whole")
    namespace.running("slice-again")
    stop(namespace, "slice-again")
    assert_nothing_left(agents)


def test_a_claim_can_use_part_of_the_compute_slices(agents: Agents, namespace: Namespace) -> None:
    parameters = {"apiVersion": "dra-agent.internal/v1", "kind": "MigConfig", "computeSlices": 1}
    namespace.claim("few", request("gpu", "mig", gpu_selector("3g.40gb")), config=[opaque(DRIVER, parameters, "gpu")])
    namespace.pod("few", claim="few")
    namespace.running("few")
    layouts = mig.read(agents["node-a"].host)
    (compute,) = (compute for gpu in layouts.values() for one in gpu.gpu_instances for compute in one.compute_instances)
    assert compute.size == 1
    stop(namespace, "few")
    assert_nothing_left(agents)


def test_a_hung_call_for_one_gpu_does_not_delay_another(agents: Agents, namespace: Namespace) -> None:
    agent = agents["node-a"]

    def pod_start_time(name: str) -> float:
        started = time.monotonic()
        start(namespace, name, "1g.10gb", SECOND)
        namespace.running(name)
        return time.monotonic() - started

    before = pod_start_time("before")
    agent.simulate("hang", "nvmlDeviceCreateGpuInstanceWithPlacement", "--device", FIRST)
    try:
        start(namespace, "hung", "1g.10gb")
        note = agent.host.parents[1] / f"mig/{FIRST.replace(':', '-')}.json"
        namespace.api.wait(note.exists, "the agent has begun to create it")
        during = pod_start_time("during")
        assert namespace.get_pod("hung")["status"]["phase"] == "Pending"
        slowdown = agent.node.api.slowdown()
        assert during < (before * 2 + 3.0) * slowdown, f"{during:.1f} s while a call hangs, {before:.1f} s before"
    finally:
        agent.simulate("clear")
    namespace.running("hung")
    stop(namespace, "before", "during", "hung")
    assert_nothing_left(agents)
