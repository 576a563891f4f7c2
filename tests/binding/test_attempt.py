"""Attempts to prepare one claim: repeats, the deadline, calls that hang, and whose failure it is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dra_agent.binding import attempt
from dra_agent.binding.attempt import Attempt, Failure, WithdrawnError
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from eventually import DEADLINE_S, eventually_async

CLAIM = {"metadata": {"uid": "uid-a"}}


class Calls:
    """A preparer with scripted results."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.count = 0

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        self.count += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return []

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        raise AssertionError("an attempt releases nothing")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "FIRST_PAUSE_S", 0.01)


async def waits() -> bool:
    return True


def run(
    calls: Calls,
    *,
    remaining_s: float = 300.0,
    check: Callable[[dict[str, Any]], None] = lambda claim: None,
    refusal: str = "",
) -> Failure | None:
    tried = Attempt(calls, check, refusal=lambda: refusal)
    return asyncio.run(tried.prepare(CLAIM, Deadline.of(remaining_s), waits))


def test_what_may_succeed_later_is_repeated() -> None:
    calls = Calls(RetryableError("busy"), RetryableError("busy"))
    assert run(calls) is None and calls.count == 3


@pytest.mark.parametrize("remaining_s", [0.0, -1000.0])
def test_after_the_deadline_one_attempt_is_made(remaining_s: float) -> None:
    assert run(Calls(), remaining_s=remaining_s) is None
    calls = Calls(RetryableError("busy"), RetryableError("busy"))
    assert run(calls, remaining_s=remaining_s) == Failure("TimedOut", "busy", True)
    assert calls.count == 1


def test_a_permanent_failure_is_not_repeated() -> None:
    calls = Calls(PermanentError("the card has no such mode", where="gpu-0"))
    assert run(calls) == Failure("SetUpFailed", "gpu-0: the card has no such mode", True)
    assert calls.count == 1


def test_a_defect_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    failure = run(Calls(ZeroDivisionError("x")))
    assert failure is not None and "ZeroDivisionError" in failure.message
    assert any(record.exc_info for record in caplog.records)


def test_an_invalid_claim_is_not_a_failure_of_devices() -> None:
    def invalid(claim: dict[str, Any]) -> None:
        raise PermanentError("no such field")

    calls = Calls()
    assert run(calls, check=invalid) == Failure("InvalidClaim", "no such field", False)
    assert calls.count == 0


def test_a_device_that_is_missing_now_is_tried() -> None:
    def missing(claim: dict[str, Any]) -> None:
        raise RetryableError("is not on this host now")

    assert run(Calls(), check=missing) is None


def test_a_node_that_leaves_tries_nothing() -> None:
    calls = Calls()
    assert run(calls, refusal="reclaimed") == Failure("NodeLeaves", "reclaimed", False)
    assert calls.count == 0


def test_a_claim_that_no_longer_waits_is_not_repeated() -> None:
    calls = Calls(RetryableError("busy"), RetryableError("busy"))

    async def no_longer() -> bool:
        return False

    with pytest.raises(WithdrawnError):
        asyncio.run(Attempt(calls, lambda claim: None).prepare(CLAIM, Deadline.of(300.0), no_longer))
    assert calls.count == 1


def test_a_call_that_hangs_fails_in_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gate = threading.Event()

    class Hanging(Calls):
        def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
            assert gate.wait(DEADLINE_S)
            return []

    async def scenario() -> None:
        try:
            tried = Attempt(Hanging(), lambda claim: None, least_s=0.05)
            failure = await tried.prepare(CLAIM, Deadline.of(0.0), waits)
            assert failure is not None and (failure.reason, failure.is_of_devices) == ("TimedOut", True)
            assert "has not ended" in failure.message
        finally:
            gate.set()
        await eventually_async(lambda: "a late set-up has ended" in caplog.text)

    asyncio.run(scenario())
