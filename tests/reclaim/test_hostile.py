"""A metadata service that means no good: no notice comes of it, one line in the log, and it is not asked too often."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import AwsSignals
from dra_agent.reclaim.signal import SignalSource
from dra_agent.reclaim.signals.aws import AwsSource
from dra_agent.reclaim.signals.azure import AzureSource
from dra_agent.reclaim.signals.gcp import GcpSource
from eventually import eventually_async
from logged import logged_by
from reclaim.metadata.aws import FakeAws
from reclaim.metadata.azure import FakeAzure
from reclaim.metadata.gcp import FakeGcp
from reclaim.metadata.server import FakeService

SECONDS = 7.0
"""Long enough that each of AWS's four voices, which ask one after the other, has waited for its answer in vain."""
LEAD = timedelta(seconds=300)
SOON = (datetime.now(UTC) + timedelta(minutes=50)).strftime("%Y-%m-%dT%H:%M:%SZ")
"""Less than the hour that AWS's notices are believed, and not while a test runs."""
EVENT = {"EventId": "1", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": ["vmss_0"], "NotBefore": ""}
NOTICES = {
    "aws": json.dumps({"action": "terminate", "time": SOON}),
    "azure": json.dumps({"DocumentIncarnation": 1, "Events": [EVENT]}),
    "gcp": "TRUE",
}
"""What would be a notice, if it came as it should."""
CLOUDS: dict[str, tuple[type[FakeService], Callable[[str], SignalSource]]] = {
    "aws": (FakeAws, lambda endpoint: AwsSource(endpoint, lead=LEAD, signals=AwsSignals(rebalance="hint"))),
    "azure": (FakeAzure, lambda endpoint: AzureSource(endpoint, vm="vmss_0", lead=LEAD, acknowledge=True)),
    "gcp": (FakeGcp, lambda endpoint: GcpSource(endpoint, preemption=LEAD, maintenance=LEAD, lead=LEAD)),
}
VOICES = {
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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """First answers may take minutes (Azure) or seconds; here they may not."""
    monkeypatch.setattr("dra_agent.reclaim.signals.azure.FIRST_REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr("dra_agent.reclaim.signals.gcp.FIRST_REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr("dra_agent.reclaim.signals.aws.REQUEST_TIMEOUT_S", 1.0)


def tries_within(seconds: float) -> int:
    """How often one question may be put: the first time, and after 1, 2, 4 and then every 8 s, less the jitter."""
    tries, wait, left = 1, 0.9, seconds
    while left >= wait:
        tries, left, wait = tries + 1, left - wait, min(wait * 2, 7.2)
    return tries


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("cloud", CLOUDS)
def test_no_notice_one_line_and_no_hammering(cloud: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make, listen = CLOUDS[cloud]
    services: dict[str, FakeService] = {}
    for name, fault in faults(NOTICES[cloud]).items():
        services[name] = make()
        # AWS's token is had; what it is needed for goes wrong.
        services[name].fail("/latest/meta-data" if cloud == "aws" else "/", times=10**6, **fault)
    reclaims: dict[str, ReclaimService] = {}

    def are_unheard() -> bool:
        looked = [{one.source: one.up for one in reclaim.source_health()} for reclaim in reclaims.values()]
        return all(up[voice] is False for up in looked for voice in VOICES[cloud])

    took = 0.0

    async def play() -> None:
        nonlocal took
        began = asyncio.get_running_loop().time()
        for number, (name, service) in enumerate(services.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            reclaims[name] = ReclaimService(folder, "a boot", [listen(service.endpoint)])
            await reclaims[name].start()
        await asyncio.sleep(SECONDS)
        await eventually_async(are_unheard)
        for reclaim in reclaims.values():
            await reclaim.stop()
        took = asyncio.get_running_loop().time() - began

    with caplog.at_level(logging.INFO):
        asyncio.run(play())
    for service in services.values():
        service.close()
    for name, reclaim in reclaims.items():
        assert reclaim.state.phase == "none", name
        source_health = {one.source: one for one in reclaim.source_health()}
        assert {voice for voice in VOICES[cloud] if source_health[voice].up is False} == set(VOICES[cloud]), name
        assert all(one.why.isprintable() and len(one.why) < 500 for one in source_health.values()), name
    for name, service in services.items():
        asked = Counter(one.path for one in service.asked)
        # A question on a kept connection that was closed is put once more.
        assert max(asked.values()) <= 2 * tries_within(took), (name, asked)
    complaints = Counter(getattr(one, "source", "") for one in logged_by(caplog, "dra_agent", least=logging.WARNING))
    assert complaints == {voice: len(services) for voice in VOICES[cloud]}, "one line for each voice of each service"


def test_the_same_notice_again_and_again_is_one_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = FakeAws()
    service.set(spot=json.loads(NOTICES["aws"]))
    phases: list[str] = []

    async def play() -> None:
        reclaim = ReclaimService(tmp_path, "a boot", [AwsSource(service.endpoint, lead=LEAD)])

        async def changed(before: Any, after: Any) -> None:
            phases.append(after.phase)

        reclaim.on_change(changed)
        await reclaim.start()
        await eventually_async(lambda: service.count("/latest/meta-data/spot") >= 4)
        # Once it says something else, and then the same again: a notice that was heard is not taken back by nonsense.
        service.fail("/latest/meta-data/spot", status=200, body="{}", times=1)
        await eventually_async(lambda: service.count("/latest/meta-data/spot") >= 7)
        await reclaim.stop()
        assert reclaim.state.phase == "notice" and reclaim.notices == 1

    with caplog.at_level(logging.INFO):
        asyncio.run(play())
    service.close()
    assert phases == ["notice"]
    said = [one.getMessage() for one in caplog.records]
    assert said.count("reclaim notice received") == 1
    assert said.count("a source of reclaim notices is unreachable") == 1
