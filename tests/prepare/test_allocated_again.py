"""A prepared claim that is allocated again with the same devices, but other requests, shares or configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.cdi.registry import applied_edits
from dra_agent.errors import PermanentError, RetryableError
from prepare.simulated_node import SimulatedNode, claim, partition, result


def env(node: SimulatedNode, prepared: Any) -> tuple[str, ...]:
    return applied_edits(node.registry(), [name for device in prepared for name in device.cdi_device_ids]).env


def test_other_requests_change_the_result_and_the_spec(node: SimulatedNode) -> None:
    original = node.preparer.prepare(claim("a", result("gpu-0", "big"), result("gpu-1", "small")))
    assert [device.requests for device in original] == [("big",), ("small",)]
    swapped = claim("a", result("gpu-0", "small"), result("gpu-1", "big"))
    prepared = node.preparer.prepare(swapped)
    assert [(device.device, device.requests) for device in prepared] == [("gpu-0", ("small",)), ("gpu-1", ("big",))]
    assert "DRA_AGENT_REQUEST_BIG=gpu-1" in env(node, prepared)
    entry = node.ledger.get("a")
    assert entry is not None and [device.request for device in entry.devices] == ["small", "big"]
    syncs = node.memory.syncs
    assert node.preparer.prepare(swapped) == prepared and node.memory.syncs == syncs, "a repeat writes nothing"


def test_another_configuration_replaces_the_setup(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    prepared = node.preparer.prepare(claim("a", "gpu-0", config=[partition(3)]))
    assert "PARTITION=3" in env(node, prepared) and node.hardware == {"gpu-0": "a"}
    assert node.partitions.calls == ["set_up", "tear_down", "set_up"]
    plain = node.preparer.prepare(claim("a", "gpu-0"))
    assert not any("PARTITION" in text for text in env(node, plain)) and node.hardware == {}
    assert "PARTITION=1" in env(node, node.preparer.prepare(claim("a", "gpu-0", config=[partition(1)])))


def test_an_invalid_configuration_leaves_the_claim_unchanged(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    prepared = node.preparer.prepare(claim_)
    with pytest.raises(PermanentError, match=r"size: at most 7 \(device gpu-0\); ask for less"):
        node.preparer.prepare(claim("a", "gpu-0", config=[partition(8)]))
    assert node.partitions.calls == ["set_up"] and node.usable("a")
    assert node.preparer.prepare(claim_) == prepared


def test_a_setup_that_fails_on_a_change_is_rolled_back(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    with pytest.raises(RetryableError, match="no room"):
        node.preparer.prepare(claim("a", "gpu-0", config=[partition(2, fail=True)]))
    assert node.hardware == {} and node.ledger.entries() == [] and node.specs.claims() == {}


def test_a_claim_of_an_earlier_agent_is_not_taken_for_changed(node: SimulatedNode) -> None:
    """The earlier agent recorded no digest of the configuration."""
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    prepared = node.preparer.prepare(claim_)
    entry = node.memory.disk["a"]
    payload = {name: value for name, value in entry.payload.items() if name != "config"}
    node.memory.disk["a"] = msgspec.structs.replace(entry, payload=payload)
    assert node.preparer.prepare(claim_) == prepared and "tear_down" not in node.partitions.calls


def test_configuration_of_other_drivers_is_not_a_change(node: SimulatedNode) -> None:
    prepared = node.preparer.prepare(claim("a", "gpu-0"))
    foreign_config = {"source": "FromClaim", "opaque": {"driver": "other.example", "parameters": {"x": 1}}}
    assert node.preparer.prepare(claim("a", "gpu-0", config=[foreign_config])) == prepared and node.memory.syncs == 1
