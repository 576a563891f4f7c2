"""Which claims wait for the agent, and what is published and reported."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from dra_agent.binding.conditions import (
    MAX_MESSAGE_CHARS,
    ConditionNames,
    PrepareOutcome,
    PublishedConditions,
    status_entries,
    waiting_claim,
)
from dra_agent.inventory.model import Device, Inventory
from dra_agent.status.device_status import DeviceKey

DRIVER = "dra-agent.internal"
PREPARED, FAILED = ConditionNames.of(DRIVER)


def result(device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {
        "request": "gpu",
        "driver": DRIVER,
        "pool": "node-1/gpu",
        "device": device,
        "bindingConditions": [PREPARED],
        "bindingFailureConditions": [FAILED],
        **more,
    }


def claim(*results: dict[str, Any], devices: list[Any] | None = None, timestamp: Any = None) -> dict[str, Any]:
    allocation: dict[str, Any] = {"devices": {"results": list(results)}}
    if timestamp is not None:
        allocation["allocationTimestamp"] = timestamp
    return {
        "metadata": {"name": "a", "namespace": "team-a", "uid": "uid-a"},
        "status": {"allocation": allocation, "devices": devices},
    }


def status(device: str, type_: str, value: str = "True") -> dict[str, Any]:
    return {
        "driver": DRIVER,
        "pool": "node-1/gpu",
        "device": device,
        "conditions": [{"type": "Ready", "status": "True"}, {"type": type_, "status": value}],
    }


@pytest.mark.parametrize(
    "other",
    [
        result(driver="other.example.com"),
        result(pool="node-2/gpu"),
        result(pool="node-1x/gpu"),
        result(bindingConditions=["other.example.com/Ready"]),
        result(bindingConditions=None),
    ],
)
def test_only_devices_of_this_node_with_the_condition_count(other: dict[str, Any]) -> None:
    assert waiting_claim(claim(other), DRIVER, "node-1") is None
    found = waiting_claim(claim(other, result("gpu-1", shareID="s")), DRIVER, "node-1")
    assert found is not None and found.devices == (DeviceKey("node-1/gpu", "gpu-1", "s"),)


def test_a_claim_is_decided_when_every_device_has_a_result() -> None:
    def decided(*devices: Any) -> bool:
        found = waiting_claim(claim(result(), result("gpu-1"), devices=list(devices)), DRIVER, "node-1")
        assert found is not None
        return found.is_decided

    assert not decided()
    assert not decided(status("gpu-0", PREPARED))
    assert not decided(status("gpu-0", PREPARED), status("gpu-1", PREPARED, "False"))
    assert not decided(status("gpu-0", PREPARED), status("gpu-1", "Ready"))
    assert decided(status("gpu-0", PREPARED), status("gpu-1", FAILED))


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-26T20:00:00Z", datetime(2026, 11, 26, 20, tzinfo=UTC)),
        ("2026-11-26T20:00:00", datetime(2026, 11, 26, 20, tzinfo=UTC)),
        ("yesterday", None),
        (None, None),
    ],
)
def test_the_time_of_the_allocation_may_be_missing(text: str | None, time: datetime | None) -> None:
    found = waiting_claim(claim(result(), timestamp=text), DRIVER, "node-1")
    assert found is not None and found.allocated_at == time


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "a", "uid": "u"}},
        {"metadata": {"name": "a", "uid": "u"}, "status": {"allocation": {"devices": {"results": 7}}}},
        {
            "metadata": {"name": "a", "uid": "u"},
            "status": {"allocation": {"devices": {"results": [{"driver": DRIVER}]}}},
        },
    ],
)
def test_other_objects_wait_for_nothing(wrong: dict[str, Any]) -> None:
    assert waiting_claim(wrong, DRIVER, "node-1") is None


@pytest.mark.parametrize("is_prepared", [True, False])
def test_exactly_one_of_both_conditions_is_true(is_prepared: bool) -> None:
    keys = (DeviceKey("node-1/gpu", "gpu-0"), DeviceKey("node-1/gpu", "gpu-1", "s"))
    entries = status_entries(DRIVER, keys, PrepareOutcome(is_prepared, "Why", "x" * 5000), "2026-11-26T20:00:00Z")
    assert [entry.get("shareID") for entry in entries] == [None, "s"]
    for entry in entries:
        values = {one["type"]: one["status"] for one in entry["conditions"]}
        assert values == {PREPARED: str(is_prepared), FAILED: str(not is_prepared)}
        assert {len(one["message"]) for one in entry["conditions"]} == {MAX_MESSAGE_CHARS}


def test_selected_devices_are_published_with_the_conditions() -> None:
    plain = Device("gpu-0", "gpu", "amd", "0000:01:00.0", {})
    selected = msgspec.structs.replace(plain, name="gpu-1", prepare_ahead=True)
    published = PublishedConditions(DRIVER)
    found = published.apply(Inventory(devices=(plain, selected)))
    assert found.devices[0] is plain
    assert found.devices[1].to_api() == {
        "name": "gpu-1",
        "bindingConditions": [PREPARED],
        "bindingFailureConditions": [FAILED],
    }
    assert published.apply(Inventory(devices=(selected,))).devices[0] is found.devices[1], "it did not change"
    renewed = msgspec.structs.replace(selected, taints=())
    assert published.apply(Inventory(devices=(renewed,))).devices[0] is not found.devices[1]
    untouched = Inventory(devices=(plain,))
    assert published.apply(untouched) is untouched
