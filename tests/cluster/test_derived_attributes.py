"""Derived attributes of claims (alpha in Kubernetes 1.37): `explain` and `capacity` do not evaluate such claims.

The slices are written by hand, for Nodes without a kubelet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLASSES
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, node_with_devices
from cluster.kube.workload import Namespace, match, request
from cluster.test_compatibility_groups import NO_DEVICES, Command, predicted

GATE = "DRADerivedAttributes"
DRIVER = "racks.example.com"
NODES = ("node-of-rack", "node-of-other-rack")
CLASS = "unit"
RACK = "example.com/rack"
PLACES = ("r1-a", "r2-a", "r1-b", "r2-b")
"""In this order, the first two devices are in different racks."""


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A control plane for each state of the gate, which is set when a process starts."""
    with running(nodes=(), gates={GATE: True} if request.param else {}) as cluster:
        yield cluster


@pytest.fixture
def has_gate(cluster: Cluster) -> bool:
    """Whether the gate is on."""
    return bool(cluster.control_plane.gates)


@pytest.fixture
def units(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """Two Nodes with four devices each, two of each rack; only the place of a device names its rack."""
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    cluster.api.create(CLASSES, {"metadata": {"name": CLASS}, "spec": spec})
    devices = [{"name": place, "attributes": {"place": {"string": place}}} for place in PLACES]
    first, second = (node_with_devices(cluster, node, DRIVER, devices) for node in NODES)
    with first, second:
        yield
    cluster.api.delete(CLASSES, CLASS)


def test_such_a_claim_is_allocated_and_not_evaluated(
    cluster: Cluster,
    namespace: Namespace,
    units: None,
    has_gate: bool,
    explain: Explain,
    agent_command: Command,
    tmp_path: Path,
) -> None:
    derived = [{"name": RACK, "expression": f'device.attributes["{DRIVER}"].place.substring(0, 2)'}]
    pair = request("units", CLASS, count=2, derivedAttributes=derived)
    created = namespace.claim("pair", pair, constraints=[match(RACK, "units")])
    assert ("derivedAttributes" in created["spec"]["devices"]["requests"][0]["exactly"]) is has_gate
    cluster.control_plane.scheduler.kill()
    namespace.pod("pair", claim="pair", **ANYWHERE)
    answer = explain("claim/pair")
    assert not answer["fits"]
    if has_gate:
        assert "is not evaluated on any of 2 nodes" in answer["summary"] and GATE in answer["summary"]
        assert answer["unexamined"] == sorted(NODES)
        total, counted = predicted(cluster, namespace, agent_command, tmp_path, CLASS, derivedAttributes=derived)
        assert (counted["fits"], total, counted["total_is_partial"]) == (None, 0, True)
        assert {cause for row in counted["nodes"] for cause in row["causes"]} == {"derived_attributes"}
    else:
        assert answer["unexamined"] == []
    assert predicted(cluster, namespace, agent_command, tmp_path, CLASS)[0] == 2 * len(PLACES), "others are evaluated"
    cluster.control_plane.scheduler.start()
    if not has_gate:
        namespace.wait_for_scheduling_failure("pair", NO_DEVICES)
        return
    cluster.api.wait(lambda: namespace.results("pair"), "the scheduler allocates the claim")
    racks = [result["device"][:2] for result in namespace.results("pair")]
    assert len(racks) == 2 and len(set(racks)) == 1
    assert explain("claim/pair")["fits"]
    assert predicted(cluster, namespace, agent_command, tmp_path, CLASS)[0] == 2 * len(PLACES) - 2, "two are held"
