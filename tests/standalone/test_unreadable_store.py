"""A store that cannot be read for some time, as on a failing disk: clear messages, no traceback, and it continues."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import RetryableError
from dra_agent.standalone.protocol import Apply, Client, Delete, Get, ListClaims, ListClasses, Request, State
from dra_agent.standalone.store import Store
from dra_agent.standalone.store_file import FILE
from eventually import DEADLINE_S, eventually
from standalone.service_thread import ServiceThread

CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
MESSAGE = r"objects\.db: cannot be read: no such table: objects; check the disk"


@contextmanager
def unreadable(directory: Path) -> Iterator[None]:
    """Let every read of the store fail."""
    database = sqlite3.connect(directory / FILE)
    database.execute("ALTER TABLE objects RENAME TO away")
    try:
        yield
    finally:
        database.execute("ALTER TABLE away RENAME TO objects")
        database.close()


@pytest.fixture
def agent(tmp_path: Path, preparer: Any, devices: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceThread]:
    monkeypatch.setattr("dra_agent.standalone.service.FAILED_STEP_RETRY_S", 0.01)
    running = ServiceThread(tmp_path, preparer, devices)
    yield running
    running.stop()


@pytest.mark.parametrize(
    "read",
    [lambda store: store.get("K", "", "a"), lambda store: store.list("K"), lambda store: next(store.each("K"))],
    ids=["get", "list", "each"],
)
def test_a_read_that_fails_is_one_clear_message(tmp_path: Path, read: Callable[[Store], Any]) -> None:
    store = Store(tmp_path)
    store.put("K", "", "a", {"name": "a"})
    with unreadable(tmp_path), pytest.raises(RetryableError, match=MESSAGE):
        read(store)
    assert read(store)
    database = sqlite3.connect(tmp_path / FILE)
    with database:
        database.execute("UPDATE objects SET body = x'ff'")
    database.close()
    with pytest.raises(RetryableError, match=r"objects\.db: cannot be read: .*; check the disk.*restart of the agent"):
        read(store)
    store.close()


def test_requests_fail_with_the_reason_and_claims_continue_afterwards(
    agent: ServiceThread, tmp_path: Path, claim: Any, devices: Any, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[Request] = [
        Get("default", "a"),
        ListClaims(),
        ListClasses(),
        State(),
        Delete("ResourceClaim", "a", "default"),
    ]
    with Client(agent.path) as client:
        client.call(Apply([CLASS, claim("a"), claim("waits", 2)]))
        with caplog.at_level(logging.WARNING), unreadable(tmp_path):
            for request in requests:
                with pytest.raises(RetryableError, match=MESSAGE):
                    client.call(request)
            devices.names.append("gpu-2")
            agent.devices_changed()
            eventually(lambda: "cannot be reconciled now" in caplog.text)
            with pytest.raises(RetryableError, match=MESSAGE):
                client.call(Apply([CLASS]))
        assert client.call(Get("default", "waits", DEADLINE_S))["phase"] == "Prepared"
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    failed_steps = [record for record in caplog.records if record.getMessage() == "claims cannot be reconciled now"]
    assert len(failed_steps) == 1, "one reason is logged once"


def test_a_reclaim_releases_devices_while_the_store_cannot_be_read(
    agent: ServiceThread, tmp_path: Path, claim: Any, preparer: Any
) -> None:
    with Client(agent.path) as client:
        client.call(Apply([CLASS, claim("b"), claim("a")]))
        with unreadable(tmp_path):
            held = agent.call(agent.service.allocated()).result(DEADLINE_S)
            assert [(view.name, view.phase) for view in held] == [("b", "Prepared"), ("a", "Prepared")]
            agent.call(agent.service.suspend("spot interruption", release=True, timeout_s=0.1)).result(DEADLINE_S)
            eventually(lambda: preparer.prepared == {})
        eventually(lambda: agent.call(agent.service.allocated()).result(DEADLINE_S) == [])
        assert {view["phase"] for view in client.call(ListClaims())} == {"Pending"}
