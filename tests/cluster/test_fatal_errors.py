"""Errors of kube-scheduler's allocator on one node: the pod is placed nowhere, and `explain` and `capacity` say so.

The slices are written by hand, for two Nodes without a kubelet: the devices of one fit.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLASSES, SLICES, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, node_with_devices
from cluster.kube.workload import Namespace, first_available, request
from cluster.test_compatibility_groups import predicted

DRIVER, OTHER_DRIVER = "boards.example.com", "cables.example.com"
ANY, BIG = "board", "big-board"
BAD, GOOD = "node-with-error", "node-that-fits"
SIZE = f'device.attributes["{DRIVER}"].size >= 40'
FITS = {"fits": "yes"}
BOARD: Object = {"name": "board-0", "attributes": {"size": {"int": 80}}}
OLD_BOARD: Object = {"name": "board-0"}


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A control plane without kubelets."""
    with running(nodes=()) as cluster:
        yield cluster


@pytest.fixture
def classes(cluster: Cluster) -> Iterator[None]:
    """A class of all boards, and one that reads an attribute without a guard."""
    own = f'device.driver == "{DRIVER}"'
    for name, expressions in {ANY: [own], BIG: [own, SIZE]}.items():
        spec = {"selectors": [{"cel": {"expression": one}} for one in expressions]}
        cluster.api.create(CLASSES, {"kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})
    yield
    for name in (ANY, BIG):
        cluster.api.delete(CLASSES, name)


class Case(NamedTuple):
    """A request, the devices of the node with the error, and what kube-scheduler reports."""

    request: Object
    devices: Sequence[Object]
    reported: str
    spec: Mapping[str, Any] = {}
    """Further fields of the slice."""
    slices: Sequence[Mapping[str, object]] = ()
    """Further slices of the node, by the fields that differ."""
    is_of_all: bool = False
    """All devices are requested of a pool that is not usable: from 1.38 on, the error excludes its node only."""


def pool_of(slices: int, name: str = BAD) -> Object:
    return {"name": name, "generation": 1, "resourceSliceCount": slices}


ALL = request("boards", ANY, allocationMode="All")
TERMS = [
    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}
    for name in (BAD, "another")
]
CASES = {
    "incomplete": Case(ALL, [BOARD], "is currently being updated", {"pool": pool_of(2)}, is_of_all=True),
    "incomplete-of-another-driver": Case(
        ALL,
        [BOARD],
        "is currently being updated",
        slices=[{"driver": OTHER_DRIVER, "pool": pool_of(2, "cables"), "devices": [{"name": "cable"}]}],
        is_of_all=True,
    ),
    "invalid": Case(
        ALL,
        [BOARD],
        "is currently invalid",
        {"pool": pool_of(2)},
        [{"pool": pool_of(2), "devices": [BOARD]}],
        is_of_all=True,
    ),
    "alternative": Case(
        first_available("boards", request("one", ANY), request("all", ANY, allocationMode="All")),
        [BOARD],
        "is currently being updated",
        {"pool": pool_of(2)},
        is_of_all=True,
    ),
    "selector-of-the-claim": Case(request("board", ANY, SIZE), [OLD_BOARD], "CEL runtime error"),
    "selector-of-the-class": Case(request("board", BIG), [OLD_BOARD], "CEL runtime error"),
    "too-many": Case(ALL, [{"name": f"board-{number}"} for number in range(33)], "exceeds the claim limit"),
    "two-terms": Case(
        request("board", ANY),
        [{**BOARD, "nodeSelector": {"nodeSelectorTerms": TERMS}}],
        "with 2 terms",
        {"nodeName": None, "perDeviceNodeSelection": True},
    ),
}

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def nodes(cluster: Cluster, classes: None) -> Iterator[Callable[[Case], None]]:
    """Create the node of a case, and one whose only device fits."""
    with ExitStack() as stack:

        def create(case: Case) -> None:
            for number, fields in enumerate(case.slices):
                name = f"more-{number}"
                spec = {"driver": DRIVER, "nodeName": BAD, **fields}
                cluster.api.create(SLICES, {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
                stack.callback(cluster.api.delete, SLICES, name)
            # The scheduler observes what fits after the rest, so it places no pod before it observes the error.
            names = {"kubernetes.io/hostname": BAD}
            bad = node_with_devices(cluster, BAD, DRIVER, case.devices, labels=names, **case.spec)
            stack.enter_context(bad)
            names = {"kubernetes.io/hostname": GOOD, **FITS}
            stack.enter_context(node_with_devices(cluster, GOOD, DRIVER, [BOARD], labels=names))

        yield create


def wait_until_bound(namespace: Namespace, pod: str) -> None:
    namespace.api.wait(lambda: namespace.get_pod(pod)["spec"].get("nodeName") == GOOD, f"pod {pod} is on {GOOD}")


@pytest.mark.parametrize("name", CASES)
def test_an_error_on_one_node_keeps_the_pod_from_all(
    cluster: Cluster,
    namespace: Namespace,
    nodes: Callable[[Case], None],
    explain: Explain,
    agent_command: Command,
    tmp_path: Path,
    name: str,
) -> None:
    case = CASES[name]
    nodes(case)
    namespace.template("boards", case.request)
    namespace.pod("user", template="boards", **ANYWHERE)
    answer = explain("pod/user")
    minor = int(answer["scheduler_version"].partition(".")[2])
    if case.is_of_all and minor >= 38:
        wait_until_bound(namespace, "user")
        return
    namespace.wait_for_scheduling_failure("user", case.reported)
    answer = explain("pod/user")
    assert not answer["fits"] and answer["summary"].startswith(f"fits nowhere; node {BAD}: an error"), answer["summary"]
    assert answer["fatal"]["nodes"] == [BAD]
    assert {entry["node"]: entry["fits"] for entry in answer["nodes"]} == {BAD: False, GOOD: True}
    # A node that another filter excludes has no effect.
    namespace.pod("other", template="boards", nodeSelector=FITS, **ANYWHERE)
    wait_until_bound(namespace, "other")


def test_capacity_counts_no_pod_while_one_node_has_an_error(
    cluster: Cluster,
    namespace: Namespace,
    nodes: Callable[[Case], None],
    agent_command: Command,
    tmp_path: Path,
) -> None:
    nodes(CASES["selector-of-the-claim"])
    total, answer = predicted(cluster, namespace, agent_command, tmp_path, ANY, SIZE)
    assert (answer["fits"], total, answer["fatal"]["nodes"]) == (False, 0, [BAD])
    namespace.template("boards", request("board", ANY, SIZE))
    namespace.pod("user", template="boards", **ANYWHERE)
    namespace.wait_for_scheduling_failure("user", "CEL runtime error")


def test_an_invalid_pool_concerns_its_node_only_for_a_number_of_devices(
    namespace: Namespace, nodes: Callable[[Case], None], explain: Explain
) -> None:
    nodes(CASES["invalid"])
    namespace.claim("one", request("board", ANY))
    namespace.pod("user", claim="one", **ANYWHERE)
    wait_until_bound(namespace, "user")
    namespace.claim("more", request("board", ANY))
    namespace.pod("waiter", claim="more", **ANYWHERE)
    namespace.wait_for_scheduling_failure("waiter", "0/2 nodes are available")
    assert explain("pod/waiter")["fatal"] is None
