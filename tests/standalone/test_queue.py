"""The way of a claim through the queue: waiting, allocated, prepared, failed, released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import PermanentError, RetryableError
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store


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


def test_claims_that_do_not_fit_are_allocated_in_order_when_devices_come_free(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("first", 2), claim("second"), claim("third"), claim("fourth")])
    queue.reconcile()
    assert phases(queue) == {"first": "Prepared", "second": "Pending", "third": "Pending", "fourth": "Pending"}
    assert queue.view("default", "second").message == "waits for devices that other claims hold"
    queue.delete("default", "first")
    queue.reconcile()
    assert phases(queue) == {"second": "Prepared", "third": "Prepared", "fourth": "Pending"}


def test_a_small_claim_passes_one_that_does_not_fit_but_the_older_is_asked_first(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("holder"), claim("big", 2), claim("small")])
    queue.reconcile()
    assert phases(queue) == {"holder": "Prepared", "big": "Pending", "small": "Prepared"}
    queue.apply([claim("late")])
    queue.delete("default", "holder")
    queue.delete("default", "small")
    queue.reconcile()
    assert phases(queue) == {"big": "Prepared", "late": "Pending"}


def test_a_claim_that_this_host_can_never_satisfy_says_so(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("holder"), claim("huge", 3)])
    queue.reconcile()
    view = queue.view("default", "huge")
    assert view.phase == "Pending"
    assert not view.fits_empty_host
    assert "even if nothing else were claimed" in view.message
    assert queue.view("default", "holder").fits_empty_host


def test_an_error_of_the_allocation_is_the_reason_and_is_over_once_it_is_mended(queue: ClaimQueue, claim: Any) -> None:
    queue.apply([claim("a", class_name="later")])
    queue.reconcile()
    assert queue.view("default", "a").message == "no such class"
    queue.apply([{"kind": "DeviceClass", "metadata": {"name": "later"}, "spec": {}}])
    queue.reconcile()
    assert phases(queue) == {"a": "Prepared"}


def test_a_failed_prepare_keeps_the_allocation_and_is_tried_again_later_each_time(
    queue: ClaimQueue, claim: Any, preparer: Any, clock: Any
) -> None:
    preparer.error = RetryableError("the library hangs", where="gpu-0")
    queue.apply([claim("a")])
    waits = []
    for _ in range(8):
        wait = queue.reconcile()
        assert wait is not None
        waits.append(wait)
        clock.now += wait
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert queue.view("default", "a").phase == "Allocated"
    assert "gpu-0: the library hangs; next try in 60 s" in queue.view("default", "a").message
    preparer.error = None
    assert queue.reconcile() is None
    assert phases(queue) == {"a": "Prepared"}


def test_a_failing_claim_does_not_hold_up_its_neighbour(queue: ClaimQueue, claim: Any, preparer: Any) -> None:
    preparer.error = RetryableError("no")
    queue.apply([claim("bad")])
    queue.reconcile()
    preparer.error = None
    queue.apply([claim("good")])
    queue.reconcile()
    assert phases(queue) == {"bad": "Allocated", "good": "Prepared"}


def test_a_claim_that_can_never_be_prepared_gives_its_device_back_and_is_tried_when_applied_anew(
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


def test_a_release_that_fails_keeps_the_claim_and_its_devices_until_it_succeeds(
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


def test_applying_twice_changes_nothing_and_a_changed_spec_is_refused(queue: ClaimQueue, claim: Any) -> None:
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
    with pytest.raises(PermanentError, match="Pod is nothing that the agent keeps"):
        queue.apply([claim("b"), {"kind": "Pod", "metadata": {"name": "p"}}])
    assert list(phases(queue)) == ["a"]


def test_a_claim_whose_status_a_user_wrote_is_not_believed(queue: ClaimQueue, claim: Any) -> None:
    lie = {"allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "n/gpu", "device": "mine"}]}}}
    queue.apply([{**claim("a", 3), "status": lie}])
    queue.reconcile()
    assert phases(queue) == {"a": "Pending"}


def test_claims_lost_by_the_store_come_back_from_the_ledger_and_keep_their_devices(
    queue: ClaimQueue, claim: Any
) -> None:
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


def test_unknown_names_are_named(queue: ClaimQueue) -> None:
    with pytest.raises(PermanentError, match="no claim x in namespace y"):
        queue.view("y", "x")
    with pytest.raises(PermanentError, match="no DeviceClass z"):
        queue.delete_class("z")


def suspended(queue: ClaimQueue, *, release: bool) -> None:
    queue.suspend("this host is being taken", release=release)
    queue.reconcile()


def test_claims_that_are_given_up_wait_and_come_back_in_their_old_order(
    queue: ClaimQueue, preparer: Any, claim: Any
) -> None:
    for name in ("first", "second", "third"):
        queue.apply([claim(name)])
    queue.reconcile()
    before = [(view.name, view.phase, view.devices) for view in queue.views()]
    assert [phase for _, phase, _ in before] == ["Prepared", "Prepared", "Pending"]
    suspended(queue, release=True)
    assert preparer.prepared == {}
    assert {(view.phase, view.message) for view in queue.views()} == {("Pending", "this host is being taken")}
    queue.resume()
    queue.reconcile()
    assert [(view.name, view.phase, view.devices) for view in queue.views()] == before


def test_a_suspended_queue_takes_claims_in_and_prepares_none(queue: ClaimQueue, preparer: Any, claim: Any) -> None:
    queue.apply([claim("old")])
    queue.reconcile()
    suspended(queue, release=False)
    queue.apply([claim("new")])
    queue.reconcile()
    assert [(view.name, view.phase) for view in queue.views()] == [("old", "Prepared"), ("new", "Pending")]
    queue.delete("default", "old")
    queue.reconcile()
    assert preparer.prepared == {} and [view.name for view in queue.views()] == ["new"]


def test_a_claim_that_cannot_be_given_up_is_tried_again_and_keeps_nobody_else(
    queue: ClaimQueue, preparer: Any, clock: Any, claim: Any
) -> None:
    queue.apply([claim("one")])
    queue.reconcile()
    preparer.release_error = RetryableError("the disk is full")
    suspended(queue, release=True)
    (view,) = queue.views()
    assert view.phase == "Prepared" and "the disk is full; next try" in view.message
    preparer.release_error = None
    clock.now += 2
    queue.reconcile()
    assert queue.views()[0].phase == "Pending" and preparer.prepared == {}


def test_what_was_given_up_is_kept_over_a_restart(
    queue: ClaimQueue, tmp_path: Path, preparer: Any, devices: Any, clock: Any, claim: Any
) -> None:
    queue.apply([claim("one")])
    queue.reconcile()
    suspended(queue, release=True)
    store = Store(tmp_path)
    again = ClaimQueue(store, node="n", slices=list, allocate=devices.allocate, preparer=preparer, clock=clock)
    again.reconcile()
    assert [(view.name, view.phase) for view in again.views()] == [("one", "Prepared")]
    store.close()


def test_a_defect_in_one_claims_setup_costs_no_other_claim(
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


def test_a_claim_that_can_never_be_prepared_and_cannot_be_undone_keeps_its_devices_until_it_can(
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
    assert phases(queue) == {"bad": "Failed", "other": "Failed"}, "its devices went to the other, which fails as well"
    assert preparer.calls == ["prepare bad", "prepare bad", "prepare other"]


def test_a_deleted_claim_does_not_wait_for_the_next_try_of_its_prepare(
    queue: ClaimQueue, preparer: Any, clock: Any, claim: Any
) -> None:
    preparer.error = RetryableError("the library hangs")
    queue.apply([claim("a")])
    for _ in range(7):
        clock.now += queue.reconcile() or 0
    queue.delete("default", "a")
    queue.reconcile()
    assert phases(queue) == {}
