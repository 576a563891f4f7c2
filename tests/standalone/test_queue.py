"""The states of a claim in the queue: pending, allocated, prepared, failed, deleting."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import PermanentError, RetryableError
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store
from dra_agent.standalone.store_file import FILE


def phases(queue: ClaimQueue) -> dict[str, str]:
    return {view.name: view.phase for view in queue.views()}


def test_a_claim_that_fits_is_prepared_with_its_cdi_ids(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("a", 2)])
    queue.reconcile()
    view = queue.view("default", "a")
    assert view.phase == "Prepared"
    assert [device.device for device in view.devices] == ["gpu-0", "gpu-1"]
    assert view.cdi_device_ids == (f"x/claim={view.uid}-gpu-0", f"x/claim={view.uid}-gpu-1")
    assert view.claim["status"]["allocation"]["devices"]["results"][0]["pool"] == "n/gpu"


def test_pending_claims_are_allocated_in_order_after_a_release(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("first", 2), claim("second"), claim("third"), claim("fourth")])
    queue.reconcile()
    assert phases(queue) == {"first": "Prepared", "second": "Pending", "third": "Pending", "fourth": "Pending"}
    assert queue.view("default", "second").message == "waits for devices that other claims hold"
    queue.delete("default", "first")
    queue.reconcile()
    assert phases(queue) == {"second": "Prepared", "third": "Prepared", "fourth": "Pending"}


def test_a_small_claim_overtakes_but_the_older_is_tried_first(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("holder"), claim("big", 2), claim("small")])
    queue.reconcile()
    assert phases(queue) == {"holder": "Prepared", "big": "Pending", "small": "Prepared"}
    queue.apply([claim("late")])
    queue.delete("default", "holder")
    queue.delete("default", "small")
    queue.reconcile()
    assert phases(queue) == {"big": "Prepared", "late": "Pending"}


def test_a_claim_that_can_never_fit_is_reported(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("holder"), claim("huge", 3)])
    queue.reconcile()
    view = queue.view("default", "huge")
    assert view.phase == "Pending"
    assert not view.fits_empty_host
    assert "even if nothing else were claimed" in view.message
    assert queue.view("default", "holder").fits_empty_host


def test_an_allocation_error_is_the_message_until_it_is_repaired(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("a", class_name="later")])
    queue.reconcile()
    assert queue.view("default", "a").message == "no such class"
    queue.apply([{"kind": "DeviceClass", "metadata": {"name": "later"}, "spec": {}}])
    queue.reconcile()
    assert phases(queue) == {"a": "Prepared"}


def test_a_failed_prepare_keeps_its_allocation_and_backs_off(
    queue: ClaimQueue, claim: Any, preparer: Any, clock: Any
) -> None:
    preparer.error = RetryableError("the library hangs", where="gpu-0")
    queue.apply([claim("a")])
    delays = []
    for _ in range(8):
        delay = queue.reconcile()
        assert delay is not None
        delays.append(delay)
        clock.now += delay
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert queue.view("default", "a").phase == "Allocated"
    assert "gpu-0: the library hangs; next try in 60 s" in queue.view("default", "a").message
    preparer.error = None
    assert queue.reconcile() is None
    assert phases(queue) == {"a": "Prepared"}


def test_a_failing_claim_does_not_delay_another(queue: ClaimQueue, claim: Any, preparer: Any) -> None:
    preparer.error = RetryableError("no")
    queue.apply([claim("bad")])
    queue.reconcile()
    preparer.error = None
    queue.apply([claim("good")])
    queue.reconcile()
    assert phases(queue) == {"bad": "Allocated", "good": "Prepared"}


def test_an_invalid_claim_releases_its_devices_until_applied_again(
    queue: ClaimQueue, claim: Any, preparer: Any
) -> None:
    preparer.error = PermanentError("unknown field", where="spec.devices.config[0]")
    queue.apply([claim("bad", 2)])
    queue.reconcile()
    assert queue.view("default", "bad").phase == "Failed"
    assert queue.view("default", "bad").message == "spec.devices.config[0]: unknown field"
    preparer.error = None
    queue.apply([claim("other", 2)])
    queue.reconcile()
    assert phases(queue) == {"bad": "Failed", "other": "Prepared"}
    queue.delete("default", "other")
    queue.apply([claim("bad", 2)])
    queue.reconcile()
    assert phases(queue) == {"bad": "Prepared"}


def test_a_failed_release_keeps_the_claim_and_its_devices(
    queue: ClaimQueue, claim: Any, preparer: Any, clock: Any
) -> None:
    queue.apply([claim("a", 2), claim("b")])
    queue.reconcile()
    preparer.release_error = RetryableError("busy")
    queue.delete("default", "a")
    queue.reconcile()
    assert phases(queue) == {"a": "Deleting", "b": "Pending"}
    preparer.release_error = None
    clock.now += 1
    queue.reconcile()
    assert phases(queue) == {"b": "Prepared"}


def test_apply_is_idempotent_and_a_changed_spec_is_refused(queue: ClaimQueue, claim: Any) -> None:
    assert queue.apply([claim("a")])[0].action == "created"
    queue.reconcile()
    uid = queue.view("default", "a").uid
    assert queue.apply([claim("a")])[0].action == "unchanged"
    with pytest.raises(PermanentError, match="spec cannot be changed.*claim delete a -n default"):
        queue.apply([claim("a", 2)])
    assert queue.view("default", "a").uid == uid


def test_objects_are_applied_all_or_none(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("a")])
    with pytest.raises(PermanentError):
        queue.apply([claim("b"), claim("a", 2)])
    with pytest.raises(PermanentError, match="Pod is a kind that the agent does not store"):
        queue.apply([claim("b"), {"kind": "Pod", "metadata": {"name": "p"}}])
    assert list(phases(queue)) == ["a"]


def test_a_failed_write_stores_none_of_the_objects(queue: ClaimQueue, tmp_path: Path, claim: Any) -> None:
    queue.apply([claim("waits", class_name="new")])
    queue.reconcile()
    database = sqlite3.connect(tmp_path / FILE)
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON objects WHEN new.kind = 'ResourceClaim' BEGIN SELECT {}; END"
    database.execute(refuse.format("RAISE(ABORT, 'no space')"))
    both = [{"kind": "DeviceClass", "metadata": {"name": "new"}, "spec": {}}, claim("a", class_name="new")]
    with pytest.raises(RetryableError, match="cannot be written: no space"):
        queue.apply(both)
    assert [value["metadata"]["name"] for value in queue.classes()] == ["gpu"]
    queue.reconcile()
    assert phases(queue) == {"waits": "Pending"}
    database.execute("DROP TRIGGER refuse")
    database.close()
    assert [applied.action for applied in queue.apply(both)] == ["created", "created"]
    queue.reconcile()
    assert phases(queue) == {"waits": "Prepared", "a": "Prepared"}


def test_a_class_that_is_applied_twice_at_once_is_stored_as_its_last(queue: ClaimQueue) -> None:
    first: dict[str, Any] = {"kind": "DeviceClass", "metadata": {"name": "new"}, "spec": {}}
    last = {**first, "spec": {"extendedResourceName": "example.com/gpu"}}
    assert [applied.action for applied in queue.apply([first, first, last])] == ["created", "unchanged", "configured"]
    (stored,) = (value for value in queue.classes() if value["metadata"]["name"] == "new")
    assert stored["spec"] == last["spec"]


def test_a_status_written_by_a_user_is_ignored(queue: ClaimQueue, claim: Any) -> None:
    forged = {
        "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "n/gpu", "device": "mine"}]}}
    }
    queue.apply([{**claim("a", 3), "status": forged}])
    queue.reconcile()
    assert phases(queue) == {"a": "Pending"}


def test_claims_lost_by_the_store_are_restored_from_the_ledger(queue: ClaimQueue, claim: Any) -> None:
    held = {"pool": "n/gpu", "device": "gpu-0", "request": "r/sub", "share_id": None, "admin_access": False}
    whole = {**held, "device": "whole-of-gpu-0", "request": ""}
    entry = {"uid": "u1", "namespace": "team", "name": "lost", "devices": [held, whole]}
    assert queue.restore([entry], "d") == ["team/lost"]
    assert queue.restore([entry], "d") == []
    queue.apply([claim("new")])
    queue.reconcile()
    assert [device.device for device in queue.view("team", "lost").devices] == ["gpu-0"]
    assert [device.device for device in queue.view("default", "new").devices] == ["gpu-1"]
    assert queue.view("team", "lost").uid == "u1"


def test_an_error_names_the_unknown_object(queue: ClaimQueue) -> None:
    with pytest.raises(PermanentError, match="no claim x in namespace y"):
        queue.view("y", "x")
    with pytest.raises(PermanentError, match="no DeviceClass z"):
        queue.delete_class("z")


def suspend(queue: ClaimQueue, *, release: bool) -> None:
    queue.suspend("spot interruption", release=release)
    queue.reconcile()


def test_suspended_claims_are_released_and_resumed_in_order(queue: ClaimQueue, preparer: Any, claim: Any) -> None:
    for name in ("first", "second", "third"):
        queue.apply([claim(name)])
    queue.reconcile()
    before = [(view.name, view.phase, view.devices) for view in queue.views()]
    assert [phase for _, phase, _ in before] == ["Prepared", "Prepared", "Pending"]
    suspend(queue, release=True)
    assert preparer.prepared == {}
    assert {(view.phase, view.message) for view in queue.views()} == {("Pending", "spot interruption")}
    queue.resume()
    queue.reconcile()
    assert [(view.name, view.phase, view.devices) for view in queue.views()] == before


def test_a_suspended_queue_accepts_claims_and_prepares_none(queue: ClaimQueue, preparer: Any, claim: Any) -> None:
    queue.apply([claim("old")])
    queue.reconcile()
    suspend(queue, release=False)
    queue.apply([claim("new")])
    queue.reconcile()
    assert [(view.name, view.phase) for view in queue.views()] == [("old", "Prepared"), ("new", "Pending")]
    queue.delete("default", "old")
    queue.reconcile()
    assert preparer.prepared == {} and [view.name for view in queue.views()] == ["new"]


def test_a_failed_release_of_a_suspended_claim_is_retried(
    queue: ClaimQueue, preparer: Any, clock: Any, claim: Any
) -> None:
    queue.apply([claim("one")])
    queue.reconcile()
    preparer.release_error = RetryableError("the disk is full")
    suspend(queue, release=True)
    (view,) = queue.views()
    assert view.phase == "Prepared" and "the disk is full; next try" in view.message
    preparer.release_error = None
    clock.now += 2
    queue.reconcile()
    assert queue.views()[0].phase == "Pending" and preparer.prepared == {}


def test_suspended_claims_survive_a_restart(
    queue: ClaimQueue, tmp_path: Path, preparer: Any, devices: Any, clock: Any, claim: Any
) -> None:
    queue.apply([claim("one")])
    queue.reconcile()
    suspend(queue, release=True)
    store = Store(tmp_path)
    restarted = ClaimQueue(store, node="n", slices=list, allocator=devices, preparer=preparer, clock=clock)
    restarted.reconcile()
    assert [(view.name, view.phase) for view in restarted.views()] == [("one", "Prepared")]
    store.close()


def test_an_unexpected_error_of_a_claim_affects_no_other_claim(
    queue: ClaimQueue, preparer: Any, clock: Any, claim: Any
) -> None:
    preparer.error = ZeroDivisionError("a defect")
    queue.apply([claim("bad")])
    assert queue.reconcile() == 1
    assert queue.view("default", "bad").message == "a defect; next try in 1 s"
    preparer.error = None
    queue.apply([claim("good")])
    queue.reconcile()
    assert phases(queue) == {"bad": "Allocated", "good": "Prepared"}
    clock.now += 1
    queue.reconcile()
    assert phases(queue) == {"bad": "Prepared", "good": "Prepared"}


def test_an_invalid_claim_keeps_its_devices_until_it_is_undone(
    queue: ClaimQueue, preparer: Any, clock: Any, claim: Any
) -> None:
    preparer.error, preparer.release_error = PermanentError("unknown field"), RetryableError("busy")
    queue.apply([claim("bad", 2), claim("other")])
    queue.reconcile()
    assert phases(queue) == {"bad": "Allocated", "other": "Pending"}
    assert queue.view("default", "bad").message == "busy; next try in 1 s"
    preparer.release_error = None
    clock.now += 1
    queue.reconcile()
    assert phases(queue) == {"bad": "Failed", "other": "Failed"}, (
        "its devices were allocated to the other claim, which fails as well"
    )
    assert preparer.calls == ["prepare bad", "prepare bad", "prepare other"]


def test_a_deleted_claim_does_not_wait_for_a_prepare_retry(
    queue: ClaimQueue, preparer: Any, clock: Any, claim: Any
) -> None:
    preparer.error = RetryableError("the library hangs")
    queue.apply([claim("a")])
    for _ in range(7):
        clock.now += queue.reconcile() or 0
    queue.delete("default", "a")
    queue.reconcile()
    assert phases(queue) == {}
