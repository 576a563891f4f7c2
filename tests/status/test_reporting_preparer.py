"""ReportingPreparer: status for prepared claims, Events for permanent errors, and errors passed on unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, LedgerEntry
from dra_agent.status import ClaimStatusWriter, EventRecorder, ObjectReference, PreparedClaim, Reason, ReportingPreparer
from dra_agent.status.device_status import DeviceKey, prepared_claims
from status.conftest import POOL, claim, result


class FakeStatus(ClaimStatusWriter):
    """Records every report of a claim."""

    def __init__(self, reports: list[Any]) -> None:
        self.reports = reports

    def prepared(self, claim: PreparedClaim) -> None:
        self.reports.append(claim)

    def released(self, uid: str) -> None:
        self.reports.append(f"released {uid}")


class FakeEvents(EventRecorder):
    """Records every Event."""

    def __init__(self, reports: list[Any]) -> None:
        self.reports = reports

    def record(self, reason: Reason, subject: ObjectReference, note: str) -> None:
        self.reports.append((reason.name, f"{subject.namespace}/{subject.name}", note))


class FakePreparer:
    """A preparer with a fixed outcome, and all reports about it."""

    def __init__(self, outcome: Sequence[ClaimDevice] | AgentError) -> None:
        self.outcome = outcome
        self.reports: list[Any] = []
        self.status, self.events = FakeStatus(self.reports), FakeEvents(self.reports)

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        if isinstance(self.outcome, AgentError):
            raise self.outcome
        return self.outcome

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        if isinstance(self.outcome, AgentError):
            raise self.outcome
        return True


def test_a_prepared_claim_is_reported() -> None:
    fake = FakePreparer([ClaimDevice(POOL, "gpu-0", ("gpu",), "share-1", cdi_device_ids=("id",))])
    preparer = ReportingPreparer(fake, fake.status, fake.events)
    assert preparer.prepare(claim("a", result("gpu-0")), Deadline.of(60)) == fake.outcome
    preparer.unprepare("uid-a", Deadline.of(60))
    assert fake.reports == [
        PreparedClaim("uid-a", "team-a", "a", (DeviceKey(POOL, "gpu-0", "share-1"),)),
        "released uid-a",
    ]


@pytest.mark.parametrize(
    ("error", "reports"),
    [
        (PermanentError("unknown kind", where="config[0]"), [("PrepareFailed", "team-a/a", "config[0]: unknown kind")]),
        (DeviceHeldError("gpu-0 is held by b"), [("DeviceHeld", "team-a/a", "gpu-0 is held by b")]),
        (RetryableError("the disk is full"), []),
    ],
    ids=["permanent", "held", "retryable"],
)
def test_an_error_is_passed_on_and_a_permanent_one_is_reported(error: AgentError, reports: list[Any]) -> None:
    fake = FakePreparer(error)
    preparer = ReportingPreparer(fake, fake.status, fake.events)
    with pytest.raises(type(error)) as raised:
        preparer.prepare(claim("a", result("gpu-0")), Deadline.of(60))
    assert raised.value is error and fake.reports == reports
    with pytest.raises(type(error)):
        preparer.unprepare("uid-a", Deadline.of(60))
    assert fake.reports == reports, "a claim whose unprepare failed is still held"


@pytest.mark.parametrize("malformed", [{}, {"metadata": None}, {"metadata": {"name": 7, "namespace": "n", "uid": "u"}}])
def test_a_malformed_claim_causes_no_event(malformed: dict[str, Any]) -> None:
    fake = FakePreparer(PermanentError("not a ResourceClaim"))
    with pytest.raises(PermanentError, match="not a ResourceClaim"):
        ReportingPreparer(fake, fake.status, fake.events).prepare(malformed, Deadline.of(60))
    assert fake.reports == []


def test_a_claim_without_devices_of_this_driver_is_not_reported() -> None:
    fake = FakePreparer([])
    ReportingPreparer(fake, fake.status, fake.events).prepare(claim("a"), Deadline.of(60))
    assert fake.reports == []


def test_after_a_restart_the_ledger_lists_held_claims() -> None:
    devices = (HeldDevice(POOL, "gpu-0", "gpu", "share-1"), HeldDevice(POOL, "parent", "", "gpu-0", shared=True))
    entries = [
        LedgerEntry("u1", "team-a", "a", devices, "completed"),
        LedgerEntry("u2", "team-a", "b", devices, "started"),
    ]
    assert prepared_claims(entries) == [PreparedClaim("u1", "team-a", "a", (DeviceKey(POOL, "gpu-0", "share-1"),))]
