"""A hostile metadata service causes no notice, one log line, and a bounded number of requests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tiers
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import AwsSignals
from dra_agent.reclaim.signal import SignalSource
from dra_agent.reclaim.signals.aws import AwsSource
from dra_agent.reclaim.signals.azure import AzureSource
from dra_agent.reclaim.signals.gcp import GcpSource
from dra_agent.reclaim.signals.http import MetadataService
from eventually import DEADLINE_S, eventually_async
from logged import logged_by
from reclaim.metadata.aws import FakeAws
from reclaim.metadata.azure import FakeAzure
from reclaim.metadata.gcp import FakeGcp
from reclaim.metadata.server import FakeService
from silent_address import address_of, resolve, silent_address

LEAD = timedelta(seconds=300)
SOON = (datetime.now(UTC) + timedelta(minutes=50)).strftime("%Y-%m-%dT%H:%M:%SZ")
"""Within the hour for which AWS notices are accepted, and not during the test."""
EVENT = {"EventId": "1", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": ["vmss_0"], "NotBefore": ""}
NOTICES = {
    "aws": json.dumps({"action": "terminate", "time": SOON}),
    "azure": json.dumps({"DocumentIncarnation": 1, "Events": [EVENT]}),
    "gcp": "TRUE",
}
"""Valid notices of each cloud."""
CLOUDS: dict[str, tuple[type[FakeService], Callable[[str], SignalSource]]] = {
    "aws": (FakeAws, lambda endpoint: AwsSource(endpoint, lead=LEAD, signals=AwsSignals(rebalance="hint"))),
    "azure": (FakeAzure, lambda endpoint: AzureSource(endpoint, vm="vmss_0", lead=LEAD, acknowledge=True)),
    "gcp": (FakeGcp, lambda endpoint: GcpSource(endpoint, preemption=LEAD, maintenance=LEAD, lead=LEAD)),
}
SOURCES = {
    "aws": ("aws.spot", "aws.rebalance", "aws.autoscaling", "aws.maintenance"),
    "azure": ("azure",),
    "gcp": ("gcp.preempted", "gcp.maintenance"),
}


def faults(notice: str) -> dict[str, dict[str, Any]]:
    flavor = {"Metadata-Flavor": "Google"}
    return {
        "a notice in a redirect": {"status": 302, "body": notice, "headers": {"Location": "http://127.0.0.1:1/"}},
        "a notice in an error": {"status": 500, "body": notice, "headers": flavor},
        "a notice that trickles in": {"how": "trickle", "body": notice},
        "a notice that is cut off": {"how": "short", "body": notice},
        "headers without end": {"how": "headers"},
        "a body without end": {"how": "endless"},
        "a huge body": {"status": 200, "body": notice + " " * 70_000, "headers": flavor},
        "NUL before": {"status": 200, "body": "\0" + notice, "headers": flavor},
        "NUL inside": {"status": 200, "body": notice[:3] + "\0" + notice[3:], "headers": flavor},
        "NUL after": {"status": 200, "body": notice + "\0", "headers": flavor},
        "UTF-16": {"status": 200, "body": "\xff\xfe" + "\0".join(notice), "headers": flavor},
        "twice": {"status": 200, "body": notice + notice, "headers": flavor},
        "a list of lists": {"status": 200, "body": "[" * 30_000, "headers": flavor},
        "lists in an object": {"status": 200, "body": '{"Events": ' + "[" * 30_000, "headers": flavor},
        "an HTML page": {"status": 200, "body": f"<html>{notice}</html>"},
        "no HTTP": {"how": "garbage", "body": notice},
        "silence": {"how": "hang"},
    }


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of first requests, which are seconds or minutes (Azure) in production."""
    monkeypatch.setattr("dra_agent.reclaim.signals.azure.FIRST_REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr("dra_agent.reclaim.signals.gcp.FIRST_REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr("dra_agent.reclaim.signals.aws.REQUEST_TIMEOUT_S", 1.0)


def max_requests(seconds: float) -> int:
    """Return the maximum number of requests: the first one, then after 1, 2, 4 and every 8 s, less the jitter."""
    requests, delay, remaining = 1, 0.9, seconds
    while remaining >= delay:
        requests, remaining, delay = requests + 1, remaining - delay, min(delay * 2, 7.2)
    return requests


def requests_of_a_path(service: FakeService) -> int:
    return max(Counter(entry_.path for entry_ in tuple(service.requests)).values(), default=0)


@tiers.PATIENCE
@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("cloud", CLOUDS)
def test_no_notice_one_log_line_and_few_requests(cloud: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_service, make_source = CLOUDS[cloud]
    services: dict[str, FakeService] = {}
    for name, fault in faults(NOTICES[cloud]).items():
        services[name] = make_service()
        # AWS tokens are issued; the data requests fail.
        services[name].fail("/latest/meta-data" if cloud == "aws" else "/", times=10**6, **fault)
    reclaims: dict[str, ReclaimService] = {}

    def are_all_down() -> bool:
        states = [{entry_.source: entry_.up for entry_ in reclaim.source_health()} for reclaim in reclaims.values()]
        return all(state[source] is False for state in states for source in SOURCES[cloud])

    duration = 0.0

    async def run() -> None:
        nonlocal duration
        start = asyncio.get_running_loop().time()
        for number, (name, service) in enumerate(services.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            reclaims[name] = ReclaimService(folder, "a boot", [make_source(service.endpoint)])
            await reclaims[name].start()
        await eventually_async(are_all_down)
        # Also of the services whose requests have to time out: the others could send many in that time.
        await eventually_async(lambda: all(requests_of_a_path(service) >= 3 for service in services.values()))
        for reclaim in reclaims.values():
            await reclaim.stop()
        duration = asyncio.get_running_loop().time() - start

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    for service in services.values():
        service.close()
    for name, reclaim in reclaims.items():
        assert reclaim.state.phase == "none", name
        health = {entry_.source: entry_ for entry_ in reclaim.source_health()}
        assert {source for source in SOURCES[cloud] if health[source].up is False} == set(SOURCES[cloud]), name
        assert all(entry_.why.isprintable() and len(entry_.why) < 500 for entry_ in health.values()), name
    for name, service in services.items():
        # A request on a kept connection that was closed is repeated once.
        assert requests_of_a_path(service) <= 2 * max_requests(duration), name
    warnings = Counter(
        getattr(entry_, "source", "") for entry_ in logged_by(caplog, "dra_agent", least=logging.WARNING)
    )
    assert warnings == {source: len(services) for source in SOURCES[cloud]}, "one line for each source of each service"


@tiers.PATIENCE
def test_a_repeated_notice_is_one_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = FakeAws()
    service.set(spot=json.loads(NOTICES["aws"]))
    phases: list[str] = []

    async def run() -> None:
        reclaim = ReclaimService(tmp_path, "a boot", [AwsSource(service.endpoint, lead=LEAD)])

        async def changed(before: Any, after: Any) -> None:
            phases.append(after.phase)

        reclaim.on_change(changed)
        await reclaim.start()
        await eventually_async(lambda: service.count("/latest/meta-data/spot") >= 4)
        # A malformed response in between does not cancel the notice.
        service.fail("/latest/meta-data/spot", status=200, body="{}", times=1)
        await eventually_async(lambda: service.count("/latest/meta-data/spot") >= 7)
        await reclaim.stop()
        assert reclaim.state.phase == "notice" and reclaim.notices == 1

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    service.close()
    assert phases == ["notice"]
    messages = [entry_.getMessage() for entry_ in caplog.records]
    assert messages.count("reclaim notice received") == 1
    assert messages.count("a source of reclaim notices is unreachable") == 1


def test_a_metadata_service_is_reached_although_its_first_address_does_not_respond(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(aws.endpoint)

    async def request() -> int:
        service = MetadataService("http://metadata.example")
        try:
            return (await service.request("/latest/meta-data/", headers={}, timeout_s=DEADLINE_S)).status
        finally:
            service.close()

    with silent_address() as silent:
        resolve(monkeypatch, "metadata.example", [silent, address_of((parts.hostname, parts.port))])
        assert asyncio.run(request()) == HTTPStatus.UNAUTHORIZED, "it requires a token"
