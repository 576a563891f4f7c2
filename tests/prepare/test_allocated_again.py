"""A claim that is allocated again while it is prepared: same devices, and other requests, shares or configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_agent.cdi.registry import applied_edits
from dra_agent.errors import PermanentError, RetryableError
from prepare.simulated_world import World, claim, partition, result


def env(world: World, answer: Any) -> tuple[str, ...]:
    return applied_edits(world.registry(), [name for device in answer for name in device.cdi_device_ids]).env


def test_other_requests_get_another_answer_and_another_spec(world: World) -> None:
    first = world.preparer.prepare(claim("a", result("gpu-0", "big"), result("gpu-1", "small")))
    assert [device.requests for device in first] == [("big",), ("small",)]
    swapped = claim("a", result("gpu-0", "small"), result("gpu-1", "big"))
    answer = world.preparer.prepare(swapped)
    assert [(device.device, device.requests) for device in answer] == [("gpu-0", ("small",)), ("gpu-1", ("big",))]
    assert "DRA_AGENT_REQUEST_BIG=gpu-1" in env(world, answer)
    entry = world.ledger.get("a")
    assert entry is not None and [device.request for device in entry.devices] == ["small", "big"]
    syncs = world.memory.syncs
    assert world.preparer.prepare(swapped) == answer and world.memory.syncs == syncs, "a repeat writes nothing"


def test_another_configuration_is_set_up_anew(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    answer = world.preparer.prepare(claim("a", "gpu-0", config=[partition(3)]))
    assert "PARTITION=3" in env(world, answer) and world.hardware == {"gpu-0": "a"}
    assert world.partitions.calls == ["set_up", "tear_down", "set_up"]
    plain = world.preparer.prepare(claim("a", "gpu-0"))
    assert not any("PARTITION" in text for text in env(world, plain)) and world.hardware == {}
    assert "PARTITION=1" in env(world, world.preparer.prepare(claim("a", "gpu-0", config=[partition(1)])))


def test_configuration_that_cannot_be_leaves_the_claim_as_it_was(world: World) -> None:
    wanted = claim("a", "gpu-0", config=[partition(2)])
    answer = world.preparer.prepare(wanted)
    with pytest.raises(PermanentError, match=r"size: at most 7 \(device gpu-0\); ask for less"):
        world.preparer.prepare(claim("a", "gpu-0", config=[partition(8)]))
    assert world.partitions.calls == ["set_up"] and world.usable("a")
    assert world.preparer.prepare(wanted) == answer


def test_a_set_up_that_fails_the_second_time_is_undone_and_tried_again(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    with pytest.raises(RetryableError, match="no room"):
        world.preparer.prepare(claim("a", "gpu-0", config=[partition(2, fail=True)]))
    assert world.hardware == {} and world.ledger.entries() == [] and world.specs.claims() == {}


def test_what_an_earlier_agent_prepared_is_not_taken_for_changed(world: World) -> None:
    """It kept no trace of the configuration."""
    wanted = claim("a", "gpu-0", config=[partition(2)])
    answer = world.preparer.prepare(wanted)
    entry = world.memory.disk["a"]
    payload = {name: value for name, value in entry.payload.items() if name != "config"}
    world.memory.disk["a"] = msgspec.structs.replace(entry, payload=payload)
    assert world.preparer.prepare(wanted) == answer and "tear_down" not in world.partitions.calls


def test_configuration_of_other_drivers_is_none_of_it(world: World) -> None:
    answer = world.preparer.prepare(claim("a", "gpu-0"))
    theirs = {"source": "FromClaim", "opaque": {"driver": "other.example", "parameters": {"x": 1}}}
    assert world.preparer.prepare(claim("a", "gpu-0", config=[theirs])) == answer and world.memory.syncs == 1
