"""Lists of claims in pages: order, limits, what is read for them, and clients and agents of other versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import UsageError
from dra_agent.standalone import queue as queue_module
from dra_agent.standalone import requests as requests_module
from dra_agent.standalone.protocol import (
    MAX_BRIEF_PAGE_CLAIMS,
    MAX_PAGE_CLAIMS,
    Apply,
    Client,
    Delete,
    ListClaims,
    ListPage,
    decode_request,
)
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store
from dra_agent.standalone.views import ClaimViews
from standalone.service_thread import ServiceThread

CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SQL of all connections from now on."""
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(seen.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return seen


@pytest.fixture
def agent(statements: list[str], tmp_path: Path, preparer: Any, devices: Any) -> Iterator[ServiceThread]:
    running = ServiceThread(tmp_path, preparer, devices)
    with Client(running.path) as client:
        client.call(Apply([CLASS]))
    yield running
    running.stop()


def names(views: Any) -> list[str]:
    return [view["name"] for view in views]


def test_pages_have_all_claims_in_the_order_in_which_they_came(agent: ServiceThread, claim: Any) -> None:
    with Client(agent.path) as client:
        client.call(Apply([claim(f"c{number}") for number in range(7)]))
        client.call(Delete("ResourceClaim", "c3"))
        client.call(Delete("ResourceClaim", "c6"))
        client.call(Apply([claim("c3")]))
        expected = ["c0", "c1", "c2", "c4", "c5", "c3"]
        for limit in (1, 4, 6, 100):
            found: list[Any] = []
            after: int | None = 0
            while after is not None:
                page = client.call(ListPage(after, limit))
                assert len(page["claims"]) <= limit
                found += page["claims"]
                after = page["next"]
            assert names(found) == expected
        assert found == client.call(ListClaims()) == [*client.claims()]


def test_a_claim_that_is_deleted_between_pages_hides_no_other(agent: ServiceThread, claim: Any) -> None:
    with Client(agent.path) as client:
        client.call(Apply([claim(f"c{number}", 3) for number in range(6)]))
        first = client.call(ListPage(limit=3))
        for name in ("c0", "c2", "c3"):
            client.call(Delete("ResourceClaim", name))
        client.call(Apply([claim("new", 3)]))
        assert names(client.call(ListPage(first["next"]))["claims"]) == ["c4", "c5", "new"]


def test_a_list_without_claims_reads_nothing_from_the_store(
    agent: ServiceThread, claim: Any, preparer: Any, statements: list[str]
) -> None:
    with Client(agent.path) as client:
        client.call(Apply([claim("holds"), claim("waits", 2), claim("never", 3), claim("other", class_name="absent")]))
        whole = [*client.claims()]
        assert [view["phase"] for view in whole] == ["Prepared", "Pending", "Pending", "Pending"]
        del statements[:]
        brief = [*client.claims(whole=False)]
        assert statements == []
    assert brief == [{**view, "claim": {}} for view in whole]


def test_a_list_of_allocated_claims_does_not_read_those_that_wait(
    agent: ServiceThread, claim: Any, statements: list[str]
) -> None:
    with Client(agent.path) as client:
        client.call(
            Apply([claim("waits", 3), claim("a"), *(claim(f"c{number}", 4) for number in range(50)), claim("b")])
        )
        del statements[:]
        held = [*client.claims(allocated=True)]
        assert names(held) == ["a", "b"]
        assert all(view["claim"]["status"]["allocation"] for view in held)
        assert len(statements) == 1 and "c49" not in statements[0]
        assert names(client.call(ListPage(limit=1, allocated=True))["claims"]) == ["a"]


def test_a_page_ends_at_a_size(agent: ServiceThread, claim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MAX_PAGE_BYTES", 10_000)
    large = [claim(f"c{number}", 3) for number in range(5)]
    for one in large:
        one["metadata"]["annotations"] = {"filler": "x" * 6000}
    with Client(agent.path) as client:
        client.call(Apply(large))
        assert names(client.call(ListPage())["claims"]) == ["c0", "c1"]
        assert names(client.claims()) == [f"c{number}" for number in range(5)]
        assert len(client.call(ListPage(whole=False))["claims"]) == 5


def test_a_long_list_is_shown_page_by_page(
    tmp_path: Path, preparer: Any, devices: Any, clock: Any, claim: Any, statements: list[str]
) -> None:
    store = Store(tmp_path)
    queue = ClaimQueue(store, node="n", slices=list, allocator=devices, preparer=preparer, clock=clock)
    queue.apply([CLASS, *(claim(f"c{number}", 3) for number in range(2500))])
    queue.reconcile()
    del statements[:]
    assert [view.name for view in queue.views()] == [f"c{number}" for number in range(2500)]
    assert len(statements) < 10, "the claims of a page are read together"
    assert len(queue.page(limit=100_000).claims) == MAX_PAGE_CLAIMS
    store.close()


def test_a_page_without_resource_claims_has_more_of_them_and_leaves_the_lock_to_others_meanwhile(
    tmp_path: Path, preparer: Any, devices: Any, clock: Any, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    queue = ClaimQueue(store, node="n", slices=list, allocator=devices, preparer=preparer, clock=clock)
    total = MAX_BRIEF_PAGE_CLAIMS + 500
    queue.apply([CLASS, *(claim(f"c{number}", 3) for number in range(total))])
    queue.reconcile()
    sizes: list[int] = []
    show = ClaimViews.show

    def recorded(views: ClaimViews, claims: Any, suspended: str) -> Any:
        sizes.append(len(claims))
        return show(views, claims, suspended)

    monkeypatch.setattr(ClaimViews, "show", recorded)
    first = queue.page(limit=100_000, whole=False)
    assert sizes == [MAX_PAGE_CLAIMS] * 5
    assert first.next is not None
    second = queue.page(first.next, whole=False)
    assert second.next is None
    assert [view.name for view in (*first.claims, *second.claims)] == [f"c{number}" for number in range(total)]
    store.close()


def test_a_list_without_resource_claims_takes_few_requests(
    agent: ServiceThread, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []

    def decode(line: bytes) -> Any:
        requests.append(decode_request(line))
        return requests[-1]

    with Client(agent.path) as client:
        client.call(Apply([claim(f"c{number}", 3) for number in range(2200)]))
        monkeypatch.setattr(requests_module, "decode_request", decode)
        assert len([*client.claims(whole=False)]) == 2200
        assert len(requests) == 1
        assert len([*client.claims()]) == 2200
        assert len(requests) == 4


def test_a_response_has_no_resource_claims_if_they_are_not_requested(
    agent: ServiceThread, claim: Any, statements: list[str]
) -> None:
    with Client(agent.path) as client:
        whole = client.apply([CLASS, claim("holds"), claim("waits", 3)])
        del statements[:]
        brief = client.apply([CLASS, claim("holds"), claim("waits", 3)], whole=False)
        reads = [statement for statement in statements if "ResourceClaim" in statement]
    assert reads == []
    assert whole[1]["claim"]["claim"]["spec"]
    expected = [done if done["claim"] is None else {**done, "claim": {**done["claim"], "claim": {}}} for done in whole]
    assert brief == [{**done, "action": "unchanged"} for done in expected]


def test_an_agent_of_an_earlier_version_responds_to_an_apply_with_resource_claims(
    agent: ServiceThread, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(line: bytes) -> Any:
        if b'"whole"' in line:
            raise UsageError("not a request: Object contains unknown field `whole`")
        return decode_request(line)

    monkeypatch.setattr(requests_module, "decode_request", decode)
    with Client(agent.path) as client:
        (done,) = client.apply([claim("a")], whole=False)
        assert done["action"] == "created"
        assert done["claim"]["name"] == "a" and done["claim"]["claim"]["spec"]


def test_a_response_to_a_long_request_is_read_in_parts(
    agent: ServiceThread, claim: Any, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    views_of = ClaimQueue.views_of

    def recorded(queue: ClaimQueue, keys: Any, **options: Any) -> Any:
        sizes.append(len(keys))
        return views_of(queue, keys, **options)

    monkeypatch.setattr(ClaimQueue, "views_of", recorded)
    with Client(agent.path) as client:
        applied = client.call(Apply([claim(f"c{number}", 3) for number in range(1200)]))
    assert sizes == [500, 500, 200]
    assert [result["claim"]["name"] for result in applied] == [f"c{number}" for number in range(1200)]
    reads = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(reads) < 50, "the claims of a part are read together"


def test_an_agent_of_an_earlier_version_is_asked_for_all_claims(
    agent: ServiceThread, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(line: bytes) -> Any:
        request = decode_request(line)
        if isinstance(request, ListPage):
            raise UsageError("not a request: Invalid value 'list-page' - at `$.op`")
        return request

    monkeypatch.setattr(requests_module, "decode_request", decode)
    with Client(agent.path) as client:
        client.call(Apply([claim("a"), claim("waits", 3)]))
        assert names(client.claims(whole=False)) == ["a", "waits"]
        assert names(client.claims(allocated=True)) == ["a"]
