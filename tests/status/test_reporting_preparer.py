"""The preparer that tells: status for what was prepared, Events for what failed for good, and the errors unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, LedgerEntry
from dra_agent.status import ObjectReference, PreparedClaim, Reason, ReportingPreparer
from dra_agent.status.device_status import DeviceKey
from dra_agent.status.reporting_preparer import prepared_claims
from status.conftest import POOL, claim, result


class World:
    """Prepares as told, and remembers who was told what."""

    def __init__(self, outcome: Sequence[ClaimDevice] | AgentError) -> None:
        self.outcome = outcome
        self.told: list[Any] = []

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        if isinstance(self.outcome, AgentError):
            raise self.outcome
        return self.outcome

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        if isinstance(self.outcome, AgentError):
            raise self.outcome
        return True

    def prepared(self, claim: PreparedClaim) -> None:
        self.told.append(claim)

    def released(self, uid: str) -> None:
        self.told.append(f"released {uid}")

    def record(self, reason: Reason, subject: ObjectReference, note: str) -> None:
        self.told.append((reason.name, f"{subject.namespace}/{subject.name}", note))


def test_what_was_prepared_is_told() -> None:
    world = World([ClaimDevice(POOL, "gpu-0", ("gpu",), "share-1", cdi_device_ids=("id",))])
    telling = ReportingPreparer(world, world, world)
    assert telling.prepare(claim("a", result("gpu-0")), Deadline.of(60)) == world.outcome
    telling.unprepare("uid-a", Deadline.of(60))
    assert world.told == [
        PreparedClaim("uid-a", "team-a", "a", (DeviceKey(POOL, "gpu-0", "share-1"),)),
        "released uid-a",
    ]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermanentError("unknown kind", where="config[0]"), [("PrepareFailed", "team-a/a", "config[0]: unknown kind")]),
        (DeviceHeldError("gpu-0 is held by b"), [("DeviceHeld", "team-a/a", "gpu-0 is held by b")]),
        (RetryableError("the disk is full"), []),
    ],
    ids=["permanent", "held", "retryable"],
)
def test_an_error_goes_on_unchanged_and_an_operator_sees_what_stays(error: AgentError, told: list[Any]) -> None:
    world = World(error)
    telling = ReportingPreparer(world, world, world)
    with pytest.raises(type(error)) as raised:
        telling.prepare(claim("a", result("gpu-0")), Deadline.of(60))
    assert raised.value is error and world.told == told
    with pytest.raises(type(error)):
        telling.unprepare("uid-a", Deadline.of(60))
    assert world.told == told, "what could not be unprepared is still held"


@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"metadata": {"name": 7, "namespace": "n", "uid": "u"}}])
def test_a_claim_that_is_none_makes_no_event(odd: dict[str, Any]) -> None:
    world = World(PermanentError("not a ResourceClaim"))
    with pytest.raises(PermanentError, match="not a ResourceClaim"):
        ReportingPreparer(world, world, world).prepare(odd, Deadline.of(60))
    assert world.told == []


def test_a_claim_without_devices_of_this_driver_has_nothing_to_tell() -> None:
    world = World([])
    ReportingPreparer(world, world, world).prepare(claim("a"), Deadline.of(60))
    assert world.told == []


def test_after_a_restart_the_ledger_says_what_is_held() -> None:
    devices = (HeldDevice(POOL, "gpu-0", "gpu", "share-1"), HeldDevice(POOL, "parent", "", "gpu-0", shared=True))
    entries = [
        LedgerEntry("u1", "team-a", "a", devices, "completed"),
        LedgerEntry("u2", "team-a", "b", devices, "started"),
    ]
    assert prepared_claims(entries) == [PreparedClaim("u1", "team-a", "a", (DeviceKey(POOL, "gpu-0", "share-1"),))]
