"""When an agent reports that it can write: failing writes, a late watch, and dry runs. The test controls the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dra_agent.errors import AgentError
from dra_agent.kube_client import ForbiddenError, NotFoundError, ThrottledError, UnavailableError
from dra_agent.publish import access
from dra_agent.publish.access import LOST_AFTER_S, WriteAccess
from eventually import eventually_async


class Host:
    """What the report depends on, with the requests and reports that were sent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.elder = False
        self.reports: list[bool] = []
        self.sent: list[tuple[str, dict[str, Any], bool]] = []
        self.refuse: Exception | None = None
        # SliceReflector
        self.error: AgentError | None = None
        self.lag_s = 0.0
        # SliceStore
        self.complete = True
        self.known: list[Any] = []
        self.references = 0

    def has_able_elder(self) -> bool:
        return self.elder

    def report_able(self, able: bool) -> None:
        self.reports.append(able)

    def all(self) -> list[Any]:
        return self.known

    async def reference(self) -> None:
        self.references += 1

    async def create(self, kind: object, document: dict[str, Any], *, dry_run: bool = False) -> None:
        self._send("create", document, dry_run)

    async def replace(self, kind: object, document: dict[str, Any], *, dry_run: bool = False) -> None:
        self._send("replace", document, dry_run)

    def _send(self, method: str, document: dict[str, Any], dry_run: bool) -> None:
        self.sent.append((method, document, dry_run))
        if self.refuse is not None:
            raise self.refuse


class CachedSlice:
    def decoded(self) -> dict[str, Any]:
        return {"metadata": {"name": "known"}}


def run(host: Host, scenario: Callable[[WriteAccess], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "CHECK_INTERVAL_S", 0.01)

    async def main() -> None:
        collaborators: Any = host
        report = WriteAccess(
            collaborators,
            node="node-a",
            driver="d",
            peers=collaborators,
            following=collaborators,
            published=collaborators,
            ownership=collaborators,
            clock=lambda: host.now,
        )
        task = asyncio.create_task(report.run())
        try:
            await scenario(report)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


async def wait_for_check(host: Host, report: WriteAccess) -> None:
    """Wait until the present state has been checked."""
    for _ in range(3):
        report.wake()
        await eventually_async(lambda: not report.is_woken)


def test_an_unreachable_server_gives_up_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()

    async def scenario(report: WriteAccess) -> None:
        await eventually_async(lambda: host.reports == [True])
        assert host.sent == [], "without an older agent, regular writes show whether they are accepted"
        report.failed(UnavailableError("no connection"))
        host.now = LOST_AFTER_S
        report.failed(UnavailableError("still none"))
        await wait_for_check(host, report)
        assert host.reports == [True] and str(report.reason) == "still none"
        host.now += 0.5
        await eventually_async(lambda: host.reports == [True, False])
        assert str(report.reason) == "still none"
        host.now += 0.1
        await wait_for_check(host, report)
        assert host.sent == [], "dry runs pause after a refusal"
        host.now += 100.0
        await eventually_async(lambda: host.reports == [True, False, True])
        assert report.reason is None and report.able
        ((method, document, dry_run),) = host.sent
        assert (method, dry_run) == ("create", True) and host.references == 1
        assert document["metadata"] == {"generateName": "node-a-"}
        spec = document["spec"]
        assert (spec["driver"], spec["nodeName"], spec["devices"]) == ("d", "node-a", [])
        assert (spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) == (1, 1)

    run(host, scenario, monkeypatch)


def test_a_successful_write_ends_the_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()

    async def scenario(report: WriteAccess) -> None:
        await eventually_async(lambda: host.reports == [True])
        report.failed(UnavailableError("no connection"))
        report.succeeded()
        report.failed(ThrottledError("later"))
        host.now = 5 * LOST_AFTER_S
        await wait_for_check(host, report)
        assert host.reports == [True] and report.reason is None

    run(host, scenario, monkeypatch)


def test_an_accepted_write_replaces_the_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()

    async def scenario(report: WriteAccess) -> None:
        await eventually_async(lambda: host.reports == [True])
        report.failed(ForbiddenError("no"))
        assert host.reports == [True, False]
        report.succeeded()
        host.lag_s = LOST_AFTER_S + 0.5
        await eventually_async(lambda: host.reports == [True, False, True, False])
        host.lag_s, host.now = 0.0, 1000.0
        await eventually_async(lambda: host.reports[4:] == [True])
        assert host.sent == []

    run(host, scenario, monkeypatch)


def test_a_lagging_watch_gives_up_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()

    async def scenario(report: WriteAccess) -> None:
        await eventually_async(lambda: host.reports == [True])
        host.lag_s = LOST_AFTER_S
        await wait_for_check(host, report)
        assert host.reports == [True]
        host.lag_s += 0.5
        await eventually_async(lambda: host.reports == [True, False])
        assert str(report.reason) == "the slices are not followed"
        host.error = UnavailableError("the server is away")
        await eventually_async(lambda: str(report.reason) == "the server is away")
        host.lag_s = 0.0
        await wait_for_check(host, report)
        assert host.reports == [True, False], "as long as the watch has an error"
        host.error = None
        await eventually_async(lambda: host.reports == [True, False, True])

    run(host, scenario, monkeypatch)


def test_with_an_older_agent_a_dry_run_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    host.elder = True
    host.complete = False
    host.known = [CachedSlice()]
    host.refuse = ForbiddenError("no")

    async def scenario(report: WriteAccess) -> None:
        await wait_for_check(host, report)
        assert host.sent == [], "the published slices are not known yet"
        host.complete = True
        await eventually_async(lambda: host.sent == [("replace", {"metadata": {"name": "known"}}, True)])
        await wait_for_check(host, report)
        assert len(host.sent) == 1 and host.reports == [] and str(report.reason) == "no"
        host.refuse = NotFoundError("gone meanwhile")
        host.now += 100.0
        await eventually_async(lambda: host.reports == [True])
        report.failed(ForbiddenError("not any more"))
        assert host.reports == [True, False] and str(report.reason) == "not any more"

    run(host, scenario, monkeypatch)


def test_an_unexpected_error_of_a_check_is_logged_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host()
    host.elder = True
    host.refuse = ZeroDivisionError("a defect")

    async def scenario(report: WriteAccess) -> None:
        await eventually_async(lambda: len(host.sent) >= 2)
        host.refuse = None
        await eventually_async(lambda: host.reports == [True])

    run(host, scenario, monkeypatch)
    assert "cannot determine if slices can be written" in caplog.text
