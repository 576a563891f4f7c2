"""Configuration of class and claim on a real cluster: precedence, effect, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLASSES
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, opaque, request
from dra_simulate.nvidia_smi import time_slices

HARDWARE = {"node-a": "l40s", "node-b": "l40s"}
DRIVER = "dra-agent.internal"
NODE = "node-a"

Agents = dict[str, Agent]


def time_slicing(interval: object, **more: object) -> dict[str, Any]:
    settings = {"timeSlicing": {"interval": interval}}
    return {"apiVersion": f"{DRIVER}/v1", "kind": "GpuConfig", **settings, **more}


@pytest.fixture
def interactive(cluster: Cluster) -> Iterator[str]:
    """A DeviceClass of GPUs with short time slices."""
    selector = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
    spec = {
        "selectors": [{"cel": {"expression": selector}}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": time_slicing("Short")}}],
    }
    cluster.api.create(CLASSES, {"metadata": {"name": "interactive"}, "spec": spec})
    yield "interactive"
    cluster.api.delete(CLASSES, "interactive")


def container_time_slices(namespace: Namespace, pod: str) -> set[str]:
    """Return the time slice of its GPU in the container's environment."""
    return {value for name, value in namespace.environment(pod).items() if name.endswith("_TIME_SLICE")}


def uuid_of(agents: Agents, namespace: Namespace, claim: str) -> str:
    (result,) = namespace.results(claim)
    attributes: dict[str, Any] = agents[NODE].devices()[result["device"]]["attributes"]
    return str(attributes["uuid"]["string"])


def time_slices_on_node(agents: Agents) -> dict[str, int]:
    """Return the time slices of the node's GPUs, by UUID."""
    return time_slices(Path(agents[NODE].host))


def test_claim_configuration_overrides_class_default(agents: Agents, namespace: Namespace, interactive: str) -> None:
    namespace.claim("as-the-class", request("gpu", interactive))
    override = opaque(DRIVER, time_slicing("Long"), "gpu")
    namespace.claim("as-the-claim", request("gpu", interactive), config=[override])
    namespace.claim("plain", request("gpu", "gpu"))
    for name in ("as-the-class", "as-the-claim", "plain"):
        namespace.pod(name, claim=name, node=NODE)
    namespace.running("as-the-class", "as-the-claim", "plain")
    allocated = namespace.get_claim("as-the-claim")["status"]["allocation"]["devices"]["config"]
    assert [entry["source"] for entry in allocated] == ["FromClass", "FromClaim"], (
        "both are present, the claim's is last"
    )
    # In the containers, and on the hardware.
    assert container_time_slices(namespace, "as-the-class") == {"Short"}
    assert container_time_slices(namespace, "as-the-claim") == {"Long"}
    assert container_time_slices(namespace, "plain") == set()
    short, long = (uuid_of(agents, namespace, claim) for claim in ("as-the-class", "as-the-claim"))
    assert time_slices_on_node(agents) == {short: 1, long: 3}
    namespace.delete_pod("as-the-claim")
    namespace.wait_until_deleted("as-the-claim")
    namespace.api.wait(
        lambda: time_slices_on_node(agents) == {short: 1}, "the interval is reset with the claim's last pod"
    )


def test_interval_lasts_until_the_last_pod_and_over_a_restart(
    agents: Agents, namespace: Namespace, interactive: str
) -> None:
    namespace.claim("shared", request("gpu", interactive))
    for pod in ("first", "second"):
        namespace.pod(pod, claim="shared", node=NODE)
    namespace.running("first", "second")
    uuid = uuid_of(agents, namespace, "shared")
    namespace.delete_pod("first")
    namespace.wait_until_deleted("first")
    agents[NODE].kill()
    agents[NODE].start().ready()
    assert time_slices_on_node(agents) == {uuid: 1} and container_time_slices(namespace, "second") == {"Short"}
    namespace.delete_pod("second")
    namespace.wait_until_deleted("second")
    namespace.api.wait(lambda: time_slices_on_node(agents) == {}, "the restarted agent resets it")


def test_agent_killed_during_gpu_setup_leaves_nothing_set(
    agents: Agents, namespace: Namespace, interactive: str
) -> None:
    agent = agents[NODE]
    namespace.claim("long", request("gpu", "gpu"), config=[opaque(DRIVER, time_slicing("Long"))])
    # nvidia-smi resolves its GPU once for the compute mode, and again to set the interval.
    agent.simulate("hang", "nvmlDeviceGetHandleByUUID", "--milliseconds", "4000")
    namespace.pod("user", claim="long", node=NODE)
    namespace.api.wait(lambda: [*agent.state_dir.glob("timeslice/*.json")], "the GPU is about to be changed")
    tools = psutil.Process(agent.process.pid).children(recursive=True)
    agent.kill()
    for tool in tools:  # as systemd and container runtimes do
        with suppress(psutil.NoSuchProcess):
            tool.kill()
    agent.simulate("clear")
    namespace.delete_pod("user", grace=0)
    agent.start().ready()
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: time_slices_on_node(agents) == {}, "no GPU has a time slice")
    namespace.api.wait(lambda: not [*agent.state_dir.glob("timeslice/*.json")], "the incomplete setup is undone")
    # Killed again, after it is set and while it is reset.
    namespace.claim("longer", request("gpu", "gpu"), config=[opaque(DRIVER, time_slicing("Long"))])
    namespace.pod("other", claim="longer", node=NODE)
    namespace.running("other")
    uuid = uuid_of(agents, namespace, "longer")
    assert time_slices_on_node(agents) == {uuid: 3}
    agent.simulate("hang", "nvmlDeviceGetHandleByUUID")
    namespace.delete_pod("other")
    agent.wait_for_log("did not respond within 10 s")
    assert time_slices_on_node(agents) == {uuid: 3}
    agent.kill()
    agent.simulate("clear")
    agent.start().ready()
    namespace.wait_until_deleted("other")
    namespace.api.wait(lambda: time_slices_on_node(agents) == {}, "the claim's release is finished")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (time_slicing("Shrt"), "parameters.timeSlicing.interval: invalid enum value 'Shrt'"),
        (time_slicing("Short", memory="4Gi"), "parameters.memory: no such field"),
    ],
    ids=["value", "field"],
)
def test_invalid_configuration_is_refused_with_its_field(
    agents: Agents, namespace: Namespace, parameters: dict[str, Any], message: str
) -> None:
    namespace.claim("wrong", request("gpu", "gpu"), config=[opaque(DRIVER, parameters)])
    namespace.claim("right", request("gpu", "gpu"))
    namespace.pod("refused", claim="wrong", node=NODE)
    namespace.pod("user", claim="right", node=NODE)
    namespace.running("user")
    output = namespace.wait_for_prepare_failure("refused")
    assert f"claim {namespace.name}/wrong: status.allocation.devices.config[0].opaque.{message}" in output
    assert time_slices_on_node(agents) == {}
