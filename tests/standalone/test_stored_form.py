"""Objects with null or absent fields are valid in the API: the agent stores and reads them as an API server does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.agent.config_file import validation_messages
from dra_agent.standalone.claim import FAILED
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store

API = {"apiVersion": "resource.k8s.io/v1"}
REQUEST = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": None}, "firstAvailable": None}
DEVICES = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}
METADATA: list[dict[str, Any]] = [
    {"name": "a", "annotations": None},
    {"name": "a", "deletionTimestamp": None},
    {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    {"name": "a", "namespace": None, "labels": None, "creationTimestamp": None, "uid": None},
    {"name": "a", "annotations": {FAILED: "in a copy of another claim"}},
]


class AnyDevice:
    """An allocator that allocates a device to each claim, with every spec."""

    def allocate(self, **question: Any) -> dict[str, Any]:
        result = {"request": "r", "driver": "d", "pool": "p", "device": "gpu-0"}
        return {"allocated": True, "results": [{"devices": {"results": [result]}}], "error": None}


@pytest.fixture
def start(tmp_path: Path, preparer: Any, clock: Any) -> Iterator[Any]:
    """Start a queue on the same directory again."""
    stores: list[Store] = []

    def start_queue() -> ClaimQueue:
        stores.append(Store(tmp_path))
        allocator: Any = AnyDevice()
        return ClaimQueue(stores[-1], node="n", slices=list, allocator=allocator, preparer=preparer, clock=clock)

    yield start_queue
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    "members",
    [
        *({"metadata": metadata, "spec": {"devices": DEVICES}} for metadata in METADATA),
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "a"}, "spec": None},
        {"metadata": {"name": "a"}, "spec": {"devices": None}},
        {"metadata": {"name": "a"}, "spec": {"devices": {"requests": None, "config": None}}},
        {"metadata": {"name": "a"}, "spec": {"devices": {"requests": [REQUEST]}}, "status": None},
        {"metadata": {"name": "a"}, "spec": {"devices": DEVICES}, "status": {"allocation": {"devices": {}}}},
    ],
    ids=str,
)
def test_a_claim_with_null_or_absent_fields_is_served_and_survives_a_restart(start: Any, members: Any) -> None:
    claim = {**API, "kind": "ResourceClaim", **members}
    assert validation_messages(claim) == [], "the API accepts it"
    queue = start()
    (applied,) = queue.apply([claim])
    assert applied.action == "created"
    assert [view.phase for view in queue.views()] == ["Pending"]
    queue.reconcile()
    assert [view.phase for view in queue.views()] == ["Prepared"]
    restarted = start()
    restarted.reconcile()
    assert [(view.namespace, view.name, view.phase) for view in restarted.views()] == [("default", "a", "Prepared")]
    (again,) = restarted.apply([claim])
    assert again.action == "unchanged"
    restarted.delete("default", "a")
    restarted.reconcile()
    assert restarted.views() == []


@pytest.mark.parametrize(
    "members",
    [
        {"metadata": {"name": "c"}},
        {"metadata": {"name": "c", "annotations": None}, "spec": None},
        {"metadata": {"name": "c"}, "spec": {"selectors": None, "config": None}},
        {"metadata": {"name": "c"}, "spec": {"selectors": [{"cel": {"expression": "true"}}], "config": None}},
    ],
    ids=str,
)
def test_a_class_with_null_or_absent_fields_is_served_and_survives_a_restart(start: Any, members: Any) -> None:
    device_class = {**API, "kind": "DeviceClass", **members}
    assert validation_messages(device_class) == [], "the API accepts it"
    queue = start()
    assert [applied.action for applied in queue.apply([device_class])] == ["created"]
    assert [applied.action for applied in queue.apply([device_class])] == ["unchanged"]
    (stored,) = start().classes()
    assert stored["metadata"]["name"] == "c"
    assert None not in stored["spec"].values()


def test_null_inside_the_parameters_of_a_driver_is_kept(start: Any) -> None:
    parameters = {"kind": "X", "limit": None}
    config = [{"opaque": {"driver": "d", "parameters": parameters}, "requests": None}]
    queue = start()
    queue.apply([{**API, "kind": "ResourceClaim", "metadata": {"name": "a"}, "spec": {"devices": {"config": config}}}])
    (view,) = queue.views()
    assert view.claim["spec"]["devices"]["config"] == [{"opaque": {"driver": "d", "parameters": parameters}}]


def earlier(directory: Path, *values: dict[str, Any]) -> None:
    """Store objects as an agent did that kept them as they came."""
    store = Store(directory)
    for value in values:
        namespace = "default" if value["kind"] == "ResourceClaim" else ""
        store.put(value["kind"], namespace, value["metadata"]["name"], value)
    store.close()


def test_objects_that_an_earlier_agent_stored_with_null_are_served(tmp_path: Path, start: Any) -> None:
    owned = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    claim: dict[str, Any] = {**API, "kind": "ResourceClaim", "metadata": {"name": "a", "annotations": None}}
    device_class: dict[str, Any] = {**API, "kind": "DeviceClass", "metadata": {"name": "c"}}
    earlier(
        tmp_path,
        {**claim, "metadata": {**claim["metadata"], "namespace": "default", **owned}},
        {**device_class, "metadata": {**device_class["metadata"], **owned}},
    )
    queue = start()
    assert [(view.name, view.phase) for view in queue.views()] == [("a", "Pending")]
    assert [applied.action for applied in queue.apply([claim, device_class])] == ["unchanged", "unchanged"]
    assert [stored["spec"] for stored in queue.classes()] == [{}]


@pytest.mark.parametrize(
    "damage",
    [
        {"metadata": {"name": "bad"}},
        {"metadata": {"name": "bad", "uid": 5}},
        {"metadata": {"name": "bad", "uid": "u", "creationTimestamp": "t", "annotations": "x"}},
        {"spec": "x"},
        {"spec": {"devices": {"requests": 5}}},
        {"status": []},
        {"status": {"allocation": {"devices": {"results": [{"device": 5}]}}}},
    ],
    ids=str,
)
def test_a_stored_claim_that_cannot_be_used_is_set_aside(
    tmp_path: Path, start: Any, claim: Any, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    owned = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "namespace": "default"}
    bad, good = ({**value, "metadata": {**value["metadata"], **owned}} for value in (claim("bad"), claim("good")))
    good["metadata"]["uid"] = "v"
    bad |= damage
    earlier(tmp_path, bad, good)
    with caplog.at_level(logging.ERROR):
        queue = start()
    assert [view.name for view in queue.views()] == ["good"]
    (aside,) = tmp_path.glob("*.corrupt-*")
    assert [msgspec.json.decode(line)["value"] for line in aside.read_bytes().splitlines()] == [bad]
    assert aside.stat().st_mode & 0o777 == 0o600
    assert [record.__dict__["aside"] for record in caplog.records] == [aside.name]
    assert [applied.action for applied in queue.apply([claim("bad")])] == ["created"]
    assert sorted(view.name for view in start().views()) == ["bad", "good"]
    assert [*tmp_path.glob("*.corrupt-*")] == [aside]


def test_a_stored_class_that_cannot_be_used_is_set_aside(tmp_path: Path, start: Any) -> None:
    earlier(tmp_path, {"kind": "DeviceClass", "metadata": {"name": "bad"}, "spec": 5})
    assert start().classes() == []
    assert len([*tmp_path.glob("*.corrupt-*")]) == 1
