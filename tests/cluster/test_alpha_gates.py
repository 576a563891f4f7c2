"""Fields of feature gates that are alpha in Kubernetes 1.37: a real API server with the gates on, and with defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster.kube.api import NODES, SLICES, ApiStatusError
from cluster.kube.control_plane import ControlPlane
from cluster.test_publisher import PublisherNode, control_plane, problems_of
from dra_agent.inventory.api import AttributeList, Overhead
from dra_agent.inventory.model import Device
from publish.node import NODE, device

OVERHEAD = "DRANodeAllocatableResources"
ALPHA = (OVERHEAD, "DRAListTypeAttributes")


@pytest.fixture(scope="module")
def plane_with_gates() -> Iterator[ControlPlane]:
    with control_plane(dict.fromkeys(ALPHA, True)) as created:
        yield created


@pytest.fixture(scope="module")
def plane_with_defaults() -> Iterator[ControlPlane]:
    with control_plane({}) as created:
        yield created


def site_of(plane: ControlPlane, directory: Path) -> PublisherNode:
    return PublisherNode(plane, plane.kubeconfig(f"node:{NODE}", directory / "kubeconfig"))


def gated() -> Device:
    plain = device(1, overhead={"memory": Overhead(per_pod="1Gi", per_container="64Mi")})
    rails = AttributeList.of_values(["a", "b"])
    return msgspec.structs.replace(plain, attributes={**plain.attributes, "site.example/rails": rails})


def declare(plane: ControlPlane, *features: str) -> None:
    """Set the features of the node, as its kubelet does, and wait until the API server applies them to slices."""
    plane.api.patch(NODES, NODE, {"status": {"declaredFeatures": list(features)}}, subresource="status")
    costly = {"name": "probe", "nodeAllocatableResources": {"memory": {"overhead": {"perPod": "1Gi"}}}}
    pool = {"name": "probe", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "probe.example", "nodeName": NODE, "pool": pool, "devices": [costly]}
    body = {"apiVersion": SLICES.version, "kind": "ResourceSlice", "metadata": {"name": "probe"}, "spec": spec}

    def applies() -> bool:
        try:
            plane.api.call("POST", f"{SLICES.path(None, None, None)}?dryRun=All", body)
        except ApiStatusError as error:
            assert "does not support" in str(error), error
            return OVERHEAD not in features
        return OVERHEAD in features

    plane.api.wait(applies, "the API server has observed the features of the node")


def test_fields_are_published_where_their_gates_are_on(plane_with_gates: ControlPlane, tmp_path: Path) -> None:
    site = site_of(plane_with_gates, tmp_path)
    declare(plane_with_gates, OVERHEAD)
    assert site.publish(gated(), device(2)) == {"create": 1}
    published = site.devices()[device(1).name]
    overhead = {"perPod": "1Gi", "perContainer": "64Mi"}
    assert published["nodeAllocatableResources"] == {"memory": {"overhead": overhead}}
    assert published["attributes"]["site.example/rails"] == {"strings": ["a", "b"]}
    assert site.publish() == {}, "nothing is written again"


def test_overhead_is_left_out_where_the_gate_of_the_kubelet_is_off(
    plane_with_gates: ControlPlane, tmp_path: Path
) -> None:
    site = site_of(plane_with_gates, tmp_path)
    declare(plane_with_gates)
    site.set_devices(gated(), device(2))
    (problem,) = problems_of(site)
    assert OVERHEAD in problem and "the kubelets" in problem
    found = site.devices()
    assert sorted(found) == [device(1).name, device(2).name]
    assert "nodeAllocatableResources" not in found[device(1).name]
    assert found[device(1).name]["attributes"]["site.example/rails"] == {"strings": ["a", "b"]}
    declare(plane_with_gates, OVERHEAD)
    assert site.publish() == {"update": 1}
    assert site.devices()[device(1).name]["nodeAllocatableResources"]


def test_fields_are_left_out_where_their_gates_are_off(plane_with_defaults: ControlPlane, tmp_path: Path) -> None:
    site = site_of(plane_with_defaults, tmp_path)
    site.set_devices(gated(), device(2))
    (problem,) = problems_of(site)
    assert all(gate in problem for gate in ALPHA)
    found = site.devices()
    assert sorted(found) == [device(1).name, device(2).name]
    assert "nodeAllocatableResources" not in found[device(1).name]
    assert sorted(found[device(1).name]["attributes"]) == ["type"]
