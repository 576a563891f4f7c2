"""The socket with the real client, while other clients misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, BusyError, PermanentError, RetryableError, UsageError
from dra_agent.standalone.protocol import Apply, Client, Delete, Get, ListClaims, ListClasses, State
from dra_agent.standalone.service import StandaloneService
from eventually import DEADLINE_S, eventually
from standalone.service_thread import HealthyDevices, ServiceThread


@pytest.fixture
def agent(tmp_path: Path, preparer: Any, devices: Any) -> Iterator[ServiceThread]:
    running = ServiceThread(tmp_path, preparer, devices)
    with Client(running.path) as client:
        client.call(Apply([{"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}]))
    yield running
    running.stop()


def test_a_claim_from_apply_to_release(agent: ServiceThread, claim: Any, preparer: Any) -> None:
    with Client(agent.path) as client:
        (applied,) = client.call(Apply([claim("a")]))
        assert applied["action"] == "created"
        assert applied["claim"]["phase"] == "Prepared"
        assert client.call(Get("default", "a"))["cdi_device_ids"] == applied["claim"]["cdi_device_ids"]
        assert [view["name"] for view in client.call(ListClaims())] == ["a"]
        assert [value["metadata"]["name"] for value in client.call(ListClasses())] == ["gpu"]
        assert len(client.call(State())["allocated"]) == 1
        assert client.call(Delete("ResourceClaim", "a", "default", DEADLINE_S)) is True
        assert client.call(ListClaims()) == []
    assert preparer.prepared == {}


def test_a_waiting_get_returns_when_a_device_arrives(agent: ServiceThread, claim: Any, devices: Any) -> None:
    with Client(agent.path) as client, Client(agent.path) as waiting:
        client.call(Apply([claim("big", 3)]))
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(waiting.call(Get("default", "big", DEADLINE_S))))
        thread.start()
        devices.names.append("gpu-2")
        agent.devices_changed()
        thread.join(60)
    assert answers[0]["phase"] == "Prepared"


def test_a_waiting_get_returns_at_its_deadline(agent: ServiceThread, claim: Any) -> None:
    with Client(agent.path) as client:
        client.call(Apply([claim("big", 3)]))
        assert client.call(Get("default", "big", 0.1))["phase"] == "Pending"


@pytest.mark.parametrize("more", [40, 0], ids=["below the limit", "at the limit"])
def test_waiting_clients_delay_no_other_request(
    agent: ServiceThread, claim: Any, devices: Any, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    with Client(agent.path) as client:
        client.call(Apply([claim("big", 3)]))
    if not more:
        monkeypatch.setattr("dra_agent.control_socket.server.MAX_WAITING", 2)
        monkeypatch.setattr("dra_agent.control_socket.protocol.BUSY_TIMEOUT_S", 0.0)
    waiting = [request_in_thread(agent.path, Get("default", "big", 10 * DEADLINE_S)) for _ in range(more or 2)]
    eventually(lambda: agent.waiting_requests == len(waiting))
    with Client(agent.path) as client:
        if not more:
            with pytest.raises(BusyError, match="claim default/big: 2 requests wait for claims.*repeat the command"):
                client.call(Get("default", "big", DEADLINE_S))
        assert client.call(Get("default", "big"))["phase"] == "Pending"
        assert [view["name"] for view in client.call(ListClaims())] == ["big"]
        client.call(Apply([claim("other")]))
        client.call(Delete("ResourceClaim", "other", "default", DEADLINE_S))
    devices.names.append("gpu-2")
    agent.devices_changed()
    for thread, answers in waiting:
        thread.join(60)
        assert [answer["phase"] for answer in answers] == ["Prepared"]


def test_claims_and_socket_of_a_killed_agent_are_taken_over(
    tmp_path: Path, claim: Any, preparer: Any, devices: Any
) -> None:
    stale_socket = socket.socket(socket.AF_UNIX)
    stale_socket.bind(str(tmp_path / "agent.sock"))
    stale_socket.close()
    first = ServiceThread(tmp_path, preparer, devices)
    with Client(first.path) as client:
        client.call(
            Apply([{"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}, claim("a"), claim("b", 2)])
        )
    first.stop()
    second = ServiceThread(tmp_path, preparer, devices)
    with Client(second.path) as client:
        assert [(view["name"], view["phase"]) for view in client.call(ListClaims())] == [
            ("a", "Prepared"),
            ("b", "Pending"),
        ]
    second.stop()
    assert not second.path.exists()


def test_the_socket_is_accessible_to_its_owner_only(agent: ServiceThread) -> None:
    assert stat.S_IMODE(agent.path.stat().st_mode) == 0o600


def test_errors_of_the_agent_are_raised_at_the_client(agent: ServiceThread, claim: Any) -> None:
    with Client(agent.path) as client:
        with pytest.raises(PermanentError, match="no claim nope"):
            client.call(Get("default", "nope"))
        with pytest.raises(PermanentError, match="spec: is missing"):
            client.call(Apply([claim("good"), {"kind": "ResourceClaim", "metadata": {"name": "bad"}}]))
        assert client.call(ListClaims()) == []


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"garbage",
        b'{"op":"rm -rf"}',
        b'{"op":"get","name":"a","namespace":"b","extra":1}',
        b"[]",
        b"\xff\xfe",
        b"",
    ],
)
def test_garbage_is_refused_and_the_connection_continues(agent: ServiceThread, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(DEADLINE_S)
        raw.connect(str(agent.path))
        raw.sendall(line + b"\n" + b'{"op":"list"}\n')
        lines = raw.makefile("rb")
        refused = json.loads(lines.readline())
        assert refused["failure"]["family"] == "usage"
        assert json.loads(lines.readline()) == {"result": []}
        lines.close()


def test_silent_and_disconnecting_clients_affect_no_other(agent: ServiceThread, claim: Any) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(agent.path))
    with socket.socket(socket.AF_UNIX) as gone:
        gone.connect(str(agent.path))
        gone.sendall(b'{"op":"li')
    with Client(agent.path) as client:
        assert client.call(Apply([claim("a")]))[0]["claim"]["phase"] == "Prepared"
    silent.close()


def test_a_missing_agent_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match="no agent is running here.*dra-agent run --standalone"):
        Client(tmp_path / "agent.sock")


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path, preparer: Any, devices: Any) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()

    async def start() -> None:
        service = StandaloneService(
            long,
            node="n",
            driver="d",
            devices=HealthyDevices(),
            preparer=preparer,
            allocator=devices,
            validate=lambda _: [],
        )
        try:
            await service.start()
        finally:
            await service.stop()

    with pytest.raises(UsageError, match="longer than 107 bytes; choose a shorter --state-dir"):
        asyncio.run(start())


def test_a_failed_prepare_is_retried_without_a_request(agent: ServiceThread, claim: Any, preparer: Any) -> None:
    preparer.error = RetryableError("busy")
    with Client(agent.path) as client:
        (applied,) = client.call(Apply([claim("a")]))
        assert applied["claim"]["phase"] == "Allocated"
        preparer.error = None
        assert client.call(Get("default", "a", DEADLINE_S))["phase"] == "Prepared"
        preparer.release_error = RetryableError("busy")
        threading.Timer(0.2, lambda: setattr(preparer, "release_error", None)).start()
        assert client.call(Delete("ResourceClaim", "a", "default", DEADLINE_S)) is True


@pytest.fixture
def hanging(preparer: Any) -> Iterator[threading.Event]:
    """Block the preparer for claims on gpu-0 until the event is set, as a hanging driver does."""
    release_driver = threading.Event()
    prepare, unprepare = preparer.prepare, preparer.unprepare
    preparer.began = threading.Event()

    def hang(devices: list[str]) -> None:
        if "gpu-0" in devices and preparer.hangs:
            preparer.began.set()
            assert release_driver.wait(60)

    def slow_prepare(claim: dict[str, Any], deadline: Deadline) -> Any:
        hang([result["device"] for result in claim["status"]["allocation"]["devices"]["results"]])
        return prepare(claim, deadline)

    def slow_unprepare(uid: str, deadline: Deadline) -> None:
        hang(preparer.prepared.get(uid, []))
        unprepare(uid, deadline)

    preparer.hangs = False
    preparer.prepare, preparer.unprepare = slow_prepare, slow_unprepare
    yield release_driver
    release_driver.set()


def request_in_thread(path: Path, request: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def send_request() -> None:
        with Client(path) as client:
            try:
                answers.append(client.call(request))
            except AgentError as error:  # the claim may be deleted meanwhile
                answers.append(error)

    thread = threading.Thread(target=send_request)
    thread.start()
    return thread, answers


@pytest.mark.parametrize("what", ["prepare", "release"])
def test_a_hanging_device_delays_its_own_claim_only(
    agent: ServiceThread, claim: Any, preparer: Any, hanging: threading.Event, what: str
) -> None:
    with Client(agent.path) as client:
        if what == "release":
            client.call(Apply([claim("stuck")]))
        preparer.hangs = True
        thread, answers = request_in_thread(
            agent.path,
            Apply([claim("stuck")])
            if what == "prepare"
            else Delete("ResourceClaim", "stuck", "default", 10 * DEADLINE_S),
        )
        assert preparer.began.wait(60)
        # All of these are answered while the device hangs: it is released only afterwards.
        assert client.call(Apply([claim("other")]))[0]["claim"]["phase"] == "Prepared"
        assert client.call(Get("default", "stuck"))["phase"] == {"prepare": "Allocated", "release": "Deleting"}[what]
        assert client.call(Delete("ResourceClaim", "other", "default", DEADLINE_S)) is True
        third = client.call(Apply([claim("big", 2)]))[0]["claim"]
        assert (third["phase"], third["message"]) == ("Pending", "waits for devices that other claims hold")
        assert not answers
        hanging.set()
        thread.join(DEADLINE_S)
        assert answers == [True] or answers[0][0]["claim"]["phase"] == "Prepared"
        if what == "prepare":
            assert client.call(Delete("ResourceClaim", "stuck", "default", DEADLINE_S)) is True
        assert client.call(Get("default", "big", DEADLINE_S))["phase"] == "Prepared", (
            "released devices are allocated to the pending claim"
        )


def test_a_claim_deleted_during_its_prepare_is_released_afterwards(
    agent: ServiceThread, claim: Any, preparer: Any, hanging: threading.Event
) -> None:
    preparer.hangs = True
    applying, _ = request_in_thread(agent.path, Apply([claim("stuck")]))
    assert preparer.began.wait(60)
    deleting, gone = request_in_thread(agent.path, Delete("ResourceClaim", "stuck", "default", 10 * DEADLINE_S))
    with Client(agent.path) as client:
        eventually(lambda: client.call(Get("default", "stuck"))["phase"] == "Deleting")
        preparer.hangs = False
        hanging.set()
        deleting.join(60)
        applying.join(60)
        assert gone == [True] and client.call(ListClaims()) == []
    assert preparer.prepared == {}


def test_an_agent_starts_with_a_hanging_device(
    tmp_path: Path, claim: Any, preparer: Any, devices: Any, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.standalone.service.START_TIMEOUT_S", 0.1)
    first = ServiceThread(tmp_path, preparer, devices)
    with Client(first.path) as client:
        client.call(Apply([{"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}, claim("a"), claim("b")]))
    first.stop()
    preparer.hangs = True
    second = ServiceThread(tmp_path, preparer, devices)
    with Client(second.path) as client:
        assert client.call(Get("default", "b", DEADLINE_S))["phase"] == "Prepared"
        assert client.call(Get("default", "a"))["phase"] == "Allocated"
        hanging.set()
        assert client.call(Get("default", "a", DEADLINE_S))["phase"] == "Prepared"
    second.stop()


def test_suspension_includes_a_claim_that_is_being_prepared(
    agent: ServiceThread, claim: Any, preparer: Any, hanging: threading.Event
) -> None:
    preparer.hangs = True
    applying, _ = request_in_thread(agent.path, Apply([claim("stuck"), claim("other")]))
    assert preparer.began.wait(60)
    suspended = agent.call(agent.service.suspend("spot interruption", release=True, timeout_s=60.0))
    with Client(agent.path) as client:
        assert client.call(Get("default", "stuck"))["phase"] == "Allocated", (
            "a claim is not released while it is being prepared"
        )
        assert not suspended.done()
        hanging.set()
        suspended.result(60)
        applying.join(60)
        assert {view["phase"] for view in client.call(ListClaims())} == {"Pending"}
    assert preparer.prepared == {}


@pytest.mark.parametrize("release", [False, True])
def test_a_hanging_device_does_not_delay_the_release_of_other_claims(
    agent: ServiceThread, claim: Any, preparer: Any, hanging: threading.Event, release: bool
) -> None:
    """A notice period may be 30 s; hooks and the release of every claim follow this wait."""
    preparer.hangs = True
    applying, _ = request_in_thread(agent.path, Apply([claim("stuck"), claim("other")]))
    assert preparer.began.wait(60)
    agent.call(agent.service.suspend("spot interruption", release=release, timeout_s=0.1)).result(DEADLINE_S)
    if not release:
        agent.call(agent.service.suspend("spot interruption", release=True, timeout_s=0.1)).result(DEADLINE_S)

    def held() -> set[str]:
        return {view.name for view in agent.call(agent.service.allocated()).result(DEADLINE_S)}

    eventually(lambda: held() == {"stuck"}, lambda: f"still hold devices while one hangs: {held()}")
    hanging.set()
    eventually(lambda: held() == set(), lambda: f"still hold devices: {held()}")
    applying.join(60)
    assert preparer.prepared == {}
