"""Thousands of pending claims: which are retried after which change, and which requests are answered meanwhile."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, UsageError
from dra_agent.standalone import evaluation, intake, tries
from dra_agent.standalone import requests as requests_module
from dra_agent.standalone import service as service_module
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.claim import RUN
from dra_agent.standalone.index import ClaimIndex
from dra_agent.standalone.protocol import MAX_LINE_BYTES, Apply, Client, Delete, Get, ListClaims, ListClasses
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.service import StandaloneService
from dra_agent.standalone.store import Store
from eventually import DEADLINE_S, eventually
from standalone.service_thread import ServiceThread

CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}


class CountingAllocator(ClusterAllocator):
    """An allocator that records each call, and that a test may block."""

    def __init__(self, allocate: Callable[..., Any]) -> None:
        self.inner = allocate
        self.calls: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def allocate(self, **question: Any) -> Any:
        self.calls.append(question["claims"][0]["metadata"]["name"])
        self.before()
        return self.inner(**question)


@pytest.fixture
def allocator(devices: Any) -> CountingAllocator:
    return CountingAllocator(devices.allocate)


@pytest.fixture
def counted(tmp_path: Path, preparer: Any, allocator: CountingAllocator, clock: Any) -> Iterator[ClaimQueue]:
    store = Store(tmp_path)
    queue = ClaimQueue(store, node="n", slices=list, allocator=allocator, preparer=preparer, clock=clock)
    queue.apply([CLASS])
    yield queue
    store.close()


def phases(queue: ClaimQueue) -> dict[str, str]:
    return {view.name: view.phase for view in queue.views()}


def test_equal_claims_are_tried_once(counted: ClaimQueue, allocator: CountingAllocator, claim: Any) -> None:
    counted.apply([claim(f"c{number:04}") for number in range(2000)])
    counted.reconcile()
    assert len(allocator.calls) <= 4, "two that fit, one that does not fit, and the same on an empty host"
    assert [view.phase for view in counted.views()[:3]] == ["Prepared", "Prepared", "Pending"]
    assert counted.views()[1999].message == "waits for devices that other claims hold"


def test_nothing_is_retried_while_nothing_changes(
    counted: ClaimQueue, allocator: CountingAllocator, claim: Any
) -> None:
    counted.apply([claim(f"c{count}", count) for count in range(1, 40)])
    counted.reconcile()
    calls = len(allocator.calls)
    counted.reconcile()
    counted.apply([claim("more", 50)])
    counted.reconcile()
    assert set(allocator.calls[calls:]) == {"more"}


def test_a_release_retries_claims_that_wait_for_devices(
    counted: ClaimQueue, allocator: CountingAllocator, claim: Any
) -> None:
    counted.apply([claim("holder", 2), claim("huge", 3), claim("small")])
    counted.reconcile()
    del allocator.calls[:]
    counted.delete("default", "holder")
    counted.reconcile()
    assert allocator.calls == ["small"]
    assert phases(counted) == {"huge": "Pending", "small": "Prepared"}


def test_a_new_class_retries_claims_that_name_it(counted: ClaimQueue, allocator: CountingAllocator, claim: Any) -> None:
    counted.apply([claim("one", class_name="one"), claim("two", class_name="two"), claim("huge", 3)])
    counted.reconcile()
    del allocator.calls[:]
    counted.apply([{"kind": "DeviceClass", "metadata": {"name": "two"}, "spec": {}}])
    counted.reconcile()
    assert allocator.calls == ["two"]
    assert phases(counted)["two"] == "Prepared"


def test_a_new_device_retries_all_claims(counted: ClaimQueue, devices: Any, claim: Any) -> None:
    counted.apply([claim("big", 3), claim("huge", 9)])
    counted.reconcile()
    devices.names.append("gpu-2")
    counted.devices_changed()
    counted.reconcile()
    assert phases(counted) == {"big": "Prepared", "huge": "Pending"}


def test_what_waiting_claims_have_in_common_is_read_once_for_many_of_them(
    tmp_path: Path, preparer: Any, devices: Any, clock: Any, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements, notes = list[str](), list[str]()
    connect, open_file = sqlite3.connect, os.open

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    def counted(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path).name == evaluation.FILE:
            notes.append(path)
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", traced)
    monkeypatch.setattr(os, "open", counted)
    store = Store(tmp_path)
    queue = ClaimQueue(store, node="n", slices=list, allocator=devices, preparer=preparer, clock=clock)
    devices.names = [f"gpu-{number}" for number in range(500)]
    queue.apply([CLASS, claim("holder"), claim("most", 499), *(claim(f"c{count}", count) for count in range(2, 402))])
    queue.apply([claim("small")])
    queue.reconcile()
    del statements[:], notes[:]
    queue.delete("default", "holder")
    queue.reconcile()
    assert phases(queue)["small"] == "Prepared", "400 older claims with different specs were tried before it"
    queries = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(queries) < 40, queries[:50]
    assert len(notes) < 20
    store.close()


def test_a_claim_that_is_deleted_while_its_batch_is_tried_gets_no_devices(
    counted: ClaimQueue, allocator: CountingAllocator, claim: Any
) -> None:
    counted.apply([claim(f"c{count}", count) for count in range(3, 30)])
    counted.reconcile()

    def delete_the_next() -> None:
        allocator.before = lambda: None
        counted.delete("default", "c29")

    counted.devices_changed()
    allocator.before = delete_the_next
    del allocator.calls[:]
    counted.reconcile()
    assert "c28" in allocator.calls and "c29" not in allocator.calls


def test_a_class_that_changes_while_a_batch_is_tried_has_its_claims_tried_with_it(
    counted: ClaimQueue, allocator: CountingAllocator, claim: Any
) -> None:
    counted.apply([claim(f"c{count}", count) for count in range(3, 12)])
    counted.apply([claim("uses-new", class_name="new"), claim("also", 2, class_name="new")])

    def add_the_class() -> None:
        allocator.before = lambda: None
        counted.apply([{"kind": "DeviceClass", "metadata": {"name": "new"}, "spec": {}}])

    counted.reconcile()
    counted.devices_changed()
    allocator.before = add_the_class
    counted.reconcile()
    assert phases(counted)["uses-new"] == "Prepared"


def test_a_reconcile_ends_at_its_time_budget(
    counted: ClaimQueue, allocator: CountingAllocator, clock: Any, claim: Any
) -> None:
    def takes_a_second() -> None:
        clock.now += 1

    allocator.before = takes_a_second
    counted.apply([claim(f"c{count}", count) for count in range(3, 9)])
    assert counted.reconcile(budget_s=3.0) == 0.0
    untried = [view for view in counted.views() if "not tried yet" in view.message]
    assert 0 < len(untried) < 6
    assert untried[0].message in ("is not tried yet", "is not tried yet: 1 claim is before it")
    assert "claims are before it" in untried[-1].message
    while counted.reconcile(budget_s=3.0) == 0.0:
        pass
    assert {view.message for view in counted.views()} == {tries.FITS_NEVER}


def test_an_error_names_its_claim(
    counted: ClaimQueue, allocator: CountingAllocator, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, claims: list[Any], **_: Any) -> Any:
        return {"allocated": False, "results": [], "error": f"claim default/{claims[0]['metadata']['name']}, request r"}

    monkeypatch.setattr(allocator, "inner", refuse)
    counted.apply([claim("first"), claim("second")])
    counted.reconcile()
    messages = [view.message for view in counted.views()]
    assert messages == ["claim default/first, request r", "claim default/second, request r"]


def test_a_deleted_pending_claim_is_removed_at_once(counted: ClaimQueue, claim: Any, preparer: Any) -> None:
    counted.apply([claim("holder", 2), claim("waits")])
    counted.reconcile()
    counted.delete("default", "waits")
    assert list(phases(counted)) == ["holder"]
    counted.delete("default", "holder")
    counted.reconcile()
    assert phases(counted) == {} and preparer.prepared == {}


def test_a_duplicate_claim_refuses_the_whole_request(counted: ClaimQueue, claim: Any) -> None:
    with pytest.raises(PermanentError, match="claim default/a is there twice"):
        counted.apply([claim("b"), claim("a"), claim("a", 2)])
    assert phases(counted) == {}


def test_more_claims_than_the_limit_are_refused(
    counted: ClaimQueue, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_CLAIMS", 3)
    counted.apply([claim("a"), claim("b")])
    with pytest.raises(PermanentError, match="4 claims .* 3 at most; delete"):
        counted.apply([claim("c"), claim("d")])
    assert [result.action for result in counted.apply([claim("a"), claim("c")])] == ["unchanged", "created"]


@contextmanager
def running(directory: Path, preparer: Any, allocator: ClusterAllocator) -> Iterator[StandaloneService]:
    agent = ServiceThread(directory, preparer, allocator)
    try:
        yield agent.service
    finally:
        agent.stop()


def test_requests_are_answered_while_a_claim_is_evaluated(
    tmp_path: Path, preparer: Any, allocator: CountingAllocator, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "FIRST_TRY_S", 0.2)
    tried, may_continue = threading.Event(), threading.Event()

    def hang() -> None:
        tried.set()
        assert may_continue.wait(DEADLINE_S)

    with running(tmp_path, preparer, allocator) as service, Client(service.socket) as client:
        client.call(Apply([CLASS]))
        allocator.before = hang
        try:
            (first,) = client.call(Apply([claim("first")]))
            assert tried.wait(DEADLINE_S)
            assert first["claim"]["phase"] == "Pending" and "not tried yet" in first["claim"]["message"]
            (second,) = client.call(Apply([claim("second", 2)]))
            assert second["action"] == "created" and "not tried yet" in second["claim"]["message"]
            assert [view["name"] for view in client.call(ListClaims())] == ["first", "second"]
            assert client.call(Delete("ResourceClaim", "second")) is True
        finally:
            may_continue.set()
        assert client.call(Get("default", "first", DEADLINE_S))["phase"] == "Prepared"


def test_an_agent_stops_during_an_allocation(
    tmp_path: Path, preparer: Any, allocator: CountingAllocator, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "FIRST_TRY_S", 0.1)
    monkeypatch.setattr(service_module, "STOP_AFTER_S", 0.1)
    tried, may_continue = threading.Event(), threading.Event()

    def hang() -> None:
        tried.set()
        assert may_continue.wait(DEADLINE_S)

    agent = ServiceThread(tmp_path, preparer, allocator)
    shut_down = service_module._shut_down  # noqa: SLF001 - idle pools get no deadline: how fast they end depends on the machine

    async def shut_down_idle_pools(pool: ThreadPoolExecutor) -> None:
        """Idle pools have no deadline here: how fast they end depends on the machine only."""
        if pool is agent.service._stepper:  # noqa: SLF001 - idle pools get no deadline: how fast they end depends on the machine
            await shut_down(pool)
        else:
            pool.shutdown(wait=True)

    monkeypatch.setattr(service_module, "_shut_down", shut_down_idle_pools)
    try:
        with Client(agent.service.socket) as client:
            client.call(Apply([CLASS]))
            allocator.before = hang
            client.call(Apply([claim("first")]))
        assert tried.wait(DEADLINE_S)
        agent.stop()
        assert agent.service.hung_calls == ["allocating claims"]
        # The allocation is still running: its end does not count as a clean shutdown of the next agent.
        with (
            running(tmp_path, preparer, CountingAllocator(allocator.inner)) as service,
            Client(service.socket) as client,
        ):
            assert client.call(Get("default", "first", DEADLINE_S))["phase"] == "Prepared"
    finally:
        may_continue.set()


def test_20000_claims_are_accepted_and_restored_after_a_restart(
    tmp_path: Path, preparer: Any, allocator: CountingAllocator, claim: Any
) -> None:
    many = [claim(f"c{number:05}", 3 + number) for number in range(20_000)]
    with running(tmp_path, preparer, allocator) as service, Client(service.socket) as client:
        client.call(Apply([CLASS]))
        assert len(client.call(Apply(many))) == 20_000
        assert client.call(Get("default", "c19999"))["phase"] == "Pending"
    with running(tmp_path, preparer, allocator) as service, Client(service.socket) as client:
        assert client.call(Get("default", "c00000"))["phase"] == "Pending"
        assert client.call(Delete("ResourceClaim", "c19999")) is True


@pytest.mark.parametrize(
    "work", [(intake, "received"), (Store, "put_all")], ids=["while it is read", "as it is stored"]
)
def test_requests_that_read_do_not_wait_for_one_that_applies(
    tmp_path: Path,
    preparer: Any,
    allocator: CountingAllocator,
    claim: Any,
    monkeypatch: pytest.MonkeyPatch,
    work: tuple[Any, str],
) -> None:
    began, may_continue = threading.Event(), threading.Event()
    unblocked = getattr(*work)

    def blocked(*arguments: Any) -> Any:
        began.set()
        assert may_continue.wait(10 * DEADLINE_S)
        return unblocked(*arguments)

    with (
        running(tmp_path, preparer, allocator) as service,
        Client(service.socket) as client,
        Client(service.socket) as applying,
        ThreadPoolExecutor(1) as pool,
    ):
        client.call(Apply([CLASS, claim("waits", 3)]))
        monkeypatch.setattr(*work, blocked)
        try:
            applied = pool.submit(applying.call, Apply([claim("a", 4), claim("b", 5)]))
            assert began.wait(DEADLINE_S)
            assert [view["name"] for view in client.call(ListClaims(), timeout_s=DEADLINE_S)] == ["waits"]
            assert client.call(Get("default", "waits"), timeout_s=DEADLINE_S)["phase"] == "Pending"
            assert len(client.call(ListClasses(), timeout_s=DEADLINE_S)) == 1
            assert not applied.done()
        finally:
            may_continue.set()
        assert [result["action"] for result in applied.result(DEADLINE_S)] == ["created", "created"]
        assert [view["name"] for view in client.call(ListClaims())] == ["waits", "a", "b"]


def test_a_run_that_ends_while_its_claim_is_stored_leaves_no_claim(
    counted: ClaimQueue, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_continue = threading.Event(), threading.Event()
    put_all = Store.put_all

    def blocked(*arguments: Any) -> Any:
        began.set()
        assert may_continue.wait(10 * DEADLINE_S)
        return put_all(*arguments)

    of_run = claim("a", 3)
    of_run["metadata"]["annotations"] = {RUN: "token"}
    with ThreadPoolExecutor(2) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(Store, "put_all", blocked)
            applied = pool.submit(counted.apply, [of_run])
            assert began.wait(DEADLINE_S)
            released = pool.submit(counted.release_run, "default", "a", "token")
            may_continue.set()
            applied.result(DEADLINE_S)
        released.result(DEADLINE_S)
    assert phases(counted) == {}


def test_the_lock_of_the_queue_is_held_for_a_few_claims_at_a_time(
    counted: ClaimQueue, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()
    add = ClaimIndex.add

    def recorded(index: ClaimIndex, claims: Any) -> None:
        sizes.append(len(claims))
        add(index, claims)

    monkeypatch.setattr(ClaimIndex, "add", recorded)
    counted.apply([claim(f"c{number}", 3 + number) for number in range(1200)])
    assert sizes == [500, 500, 200]
    assert [view.name for view in counted.views()] == [f"c{number}" for number in range(1200)]


def test_a_request_with_too_many_objects_is_refused(
    tmp_path: Path, preparer: Any, allocator: CountingAllocator, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "MAX_OBJECTS_PER_APPLY", 2)
    with running(tmp_path, preparer, allocator) as service, Client(service.socket) as client:
        with pytest.raises(UsageError, match="3 objects in one request, 2 at most; apply them in several"):
            client.call(Apply([CLASS, claim("a"), claim("b")]))
        assert client.call(ListClaims()) == []


def test_a_request_that_is_too_long_is_refused_by_the_client(
    tmp_path: Path, preparer: Any, allocator: CountingAllocator, claim: Any
) -> None:
    with running(tmp_path, preparer, allocator) as service, Client(service.socket) as client:
        with pytest.raises(UsageError, match=f"bytes, {MAX_LINE_BYTES} at most; apply its objects in several"):
            client.call(Apply([claim("a" * MAX_LINE_BYTES)]))
        assert client.call(ListClaims()) == []


def test_a_hanging_prepare_does_not_delay_requests(
    tmp_path: Path, preparer: Any, allocator: CountingAllocator, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "RESPOND_AFTER_S", 0.2)
    may_continue = threading.Event()
    prepare = preparer.prepare

    def hang(value: Any, deadline: Deadline) -> Any:
        assert may_continue.wait(DEADLINE_S)
        return prepare(value, deadline)

    monkeypatch.setattr(preparer, "prepare", hang)
    with running(tmp_path, preparer, allocator) as service, ThreadPoolExecutor(1) as pool:
        try:
            with Client(service.socket) as client:
                client.call(Apply([CLASS]))
                (applied,) = pool.submit(client.call, Apply([claim("a")])).result(2 * DEADLINE_S)
                assert applied["action"] == "created"

                def status() -> tuple[str, str]:
                    view = client.call(Get("default", "a"))
                    return view["phase"], view["message"]

                eventually(lambda: status() == ("Allocated", "is being prepared"), status)
        finally:
            may_continue.set()


@pytest.mark.parametrize(("count", "collects"), [(2, True), (2000, False)])
def test_garbage_collection_is_paused_while_many_claims_are_applied(
    tmp_path: Path,
    preparer: Any,
    allocator: CountingAllocator,
    claim: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    count: int,
    collects: bool,
) -> None:
    enabled = set[bool]()
    put_all = Store.put_all

    def recorded(*arguments: Any) -> Any:
        enabled.add(gc.isenabled())
        return put_all(*arguments)

    monkeypatch.setattr(Store, "put_all", recorded)
    with running(tmp_path, preparer, allocator) as service, Client(service.socket) as client:
        client.call(Apply([CLASS, *(claim(f"c{number:04}", 3) for number in range(count))]))
        assert enabled == {collects}
        eventually(gc.isenabled)
        client.call(Apply([claim("more", 4)]))
        assert enabled == {collects, True}
