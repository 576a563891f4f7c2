"""Type of partitions (alpha in Kubernetes 1.37): slices of the agent next to slices that name an attribute of types.

The agent publishes no `partitionTypeAttribute`; slices with one are written by hand, for a Node without a kubelet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cluster.conftest import Explain, apply_classes
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLASSES, SLICES, ApiStatusError, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, node_with_devices
from cluster.kube.workload import Namespace, request
from cluster.test_compatibility_groups import NO_DEVICES, Command, predicted
from cluster.test_pool_status import REQUESTS

GATES = {"DRAPartitionableDevicesType": True, "DRAResourcePoolStatus": True}
HARDWARE = {"node-a": "dgx-h100"}
AGENT_CONFIG = """\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"']

[[inventory.partition]]
mode = "mig"
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
"""
CARDS, NODE, CLASS = "cards.example.com", "node-of-cards", "card"
TYPE = f"{CARDS}/size"


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster: gates are set when the API server starts."""
    with running(nodes=tuple(HARDWARE), gates=GATES, runtime_config={REQUESTS.version: True}) as cluster:
        apply_classes(cluster)
        yield cluster


def pool_status(cluster: Cluster, driver: str, **spec: str) -> Any:
    """Return the status of the only pool of a driver; a request is answered once."""
    name = f"status-{uuid4()}"
    cluster.api.create(REQUESTS, {"metadata": {"name": name}, "spec": {"driver": driver, **spec}})
    try:
        cluster.api.wait(lambda: cluster.api.get(REQUESTS, name).get("status"), f"the controller answers {name}")
        (pool,) = cluster.api.get(REQUESTS, name)["status"]["pools"]
    finally:
        cluster.api.delete(REQUESTS, name)
    return pool


def complete_status(cluster: Cluster, driver: str) -> Any:
    """Return the status of the only pool of a driver once the controller has all its slices."""
    found: list[Any] = []

    def is_complete() -> bool:
        found[:] = [pool_status(cluster, driver)]
        return "validationError" not in found[0]

    cluster.api.wait(is_complete, f"the pool of {driver} is complete")
    return found[0]


def test_slices_of_the_agent_are_complete(agents: dict[str, Agent], cluster: Cluster, namespace: Namespace) -> None:
    slices = agents["node-a"].slices()
    assert slices and not any("partitionTypeAttribute" in one["spec"] for one in slices)
    status = complete_status(cluster, DRIVER)
    assert (status["resourceSliceCount"], status["totalDevices"]) == (len(slices), len(agents["node-a"].devices()))
    # Placements of a profile consume different memory slices: the agent can name no attribute of types.
    typed = pool_status(cluster, DRIVER, defaultPartitionTypeAttribute=f"{DRIVER}/profile")
    assert typed["validationError"].startswith("PartitionCostMismatch:")
    namespace.template("half", request("half", "mig", f'device.attributes["{DRIVER}"].profile == "3g.40gb"'))
    for name in ("first", "second"):
        namespace.pod(name, template="half")
    namespace.running("first", "second")


def part(name: str, size: str, slots: int, **attributes: Object) -> Object:
    """Return a device of the card that uses so many of its slots."""
    used = {"counterSet": "card", "counters": {"slots": {"value": str(slots)}}}
    return {"name": name, "attributes": {"size": {"string": size}, **attributes}, "consumesCounters": [used]}


@pytest.fixture
def cards(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """A card of eight slots, as two halves or four quarters, whose slice names the attribute of types."""
    parts = [part(f"half-{number}", "half", 4) for number in range(2)]
    parts += [part(f"quarter-{number}", "quarter", 2) for number in range(4)]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "card", "counters": {"slots": {"value": "8"}}}]
    shared = {"driver": CARDS, "pool": pool, "nodeName": NODE, "sharedCounters": counters}
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{CARDS}"'}}]}
    cluster.api.create(CLASSES, {"metadata": {"name": CLASS}, "spec": spec})
    with node_with_devices(cluster, NODE, CARDS, parts, pool=pool, partitionTypeAttribute=TYPE):
        cluster.api.create(SLICES, {"kind": "ResourceSlice", "metadata": {"name": "counters"}, "spec": shared})
        yield
        cluster.api.delete(SLICES, "counters")
    cluster.api.delete(CLASSES, CLASS)


def test_the_api_server_accepts_types_of_devices_that_have_them(cluster: Cluster, cards: None) -> None:
    (stored,) = [one for one in cluster.api.list(SLICES) if one["metadata"]["name"] == f"devices-{NODE}"]
    assert stored["spec"]["partitionTypeAttribute"] == TYPE
    untyped = part("other", "half", 4)
    untyped["attributes"] = {}
    plain = {"name": "plain", "attributes": {"size": {"string": "half"}}}
    for devices, reason in (
        ([part("one", "half", 4), untyped], "device consumes counters"),
        ([plain], "may only be set on a slice which declares devices that consume counters"),
    ):
        spec = {**stored["spec"], "devices": devices}
        with pytest.raises(ApiStatusError, match=reason):
            cluster.api.create(SLICES, {"kind": "ResourceSlice", "metadata": {"name": "invalid"}, "spec": spec})
    assert complete_status(cluster, CARDS)["totalDevices"] == 6


def of_size(size: str) -> str:
    """Return the selector of devices of this type."""
    return f'device.attributes["{CARDS}"].size == "{size}"'


def test_scheduler_status_and_capacity_count_the_same_partitions(
    cluster: Cluster,
    namespace: Namespace,
    cards: None,
    explain: Explain,
    agent_command: Command,
    tmp_path: Path,
) -> None:
    """`capacity` of a type equals what the status of the pool reports as allocatable, and the scheduler uses it up."""

    def use(name: str, size: str) -> None:
        namespace.claim(name, request("part", CLASS, of_size(size)))
        namespace.pod(name, claim=name, **ANYWHERE)

    def allocatable() -> dict[str, int]:
        status = pool_status(cluster, CARDS)
        return {entry["type"]: entry["allocatable"] for entry in status["partitionSummary"]}

    def wait_for_counts(half: int, quarter: int) -> None:
        expected = {"half": half, "quarter": quarter}
        cluster.api.wait(lambda: allocatable() == expected, f"the status of the pool has {expected}")
        for size, count in expected.items():
            assert predicted(cluster, namespace, agent_command, tmp_path, CLASS, of_size(size))[0] == count

    wait_for_counts(2, 4)
    use("half", "half")
    wait_for_counts(1, 2)
    use("quarter", "quarter")
    wait_for_counts(0, 1)
    use("other", "quarter")
    wait_for_counts(0, 0)
    use("waiter", "quarter")
    namespace.wait_for_scheduling_failure("waiter", NO_DEVICES)
    assert not explain("claim/waiter")["fits"]
