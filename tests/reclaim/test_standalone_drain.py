"""The drain of a host without Kubernetes, with a standalone service that holds claims as long as the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_agent.clock import STEADY
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.standalone import StandaloneDrain
from dra_agent.standalone.claim import ClaimView
from dra_agent.standalone.service import StandaloneService
from dra_agent.standalone.steps import Steps
from eventually import DEADLINE_S, eventually_async

WHY = "this node is being reclaimed (operator: a test)"


def view(name: str) -> ClaimView:
    return ClaimView("ns", name, f"uid-{name}", "Prepared", "", "", "", (), ("v/gpu=0", "v/gpu=1"), True, {})


class HeldClaims(StandaloneService):
    """Records what the drain requests; claims are released by the test."""

    def __init__(self, *names: str) -> None:
        self.held = [view(name) for name in names]
        self.calls: list[tuple[str, object]] = []
        self.steps = Steps()

    async def suspend(self, why: str, *, release: bool, timeout_s: float = 0.0) -> None:
        self.calls.append((why, release))

    async def change_reason(self, why: str) -> None:
        self.calls.append((why, "changed"))

    async def resume(self) -> None:
        self.calls.append(("resume", ""))

    async def allocated(self) -> list[ClaimView]:
        return list(self.held)

    async def release(self) -> None:
        self.held.pop()
        await self.steps.completed()


class Listener:
    """A source that counts the notifications that every claim is released."""

    names = ("listener",)

    def __init__(self) -> None:
        self.notifications = 0

    async def run(self, sink: Any) -> None:
        await asyncio.Event().wait()

    async def released(self) -> None:
        self.notifications += 1


@dataclass
class Host:
    """A host without Kubernetes."""

    folder: Path
    settings: ReclaimSettings = field(default_factory=ReclaimSettings)
    listener: Listener = field(default_factory=Listener)
    reclaim: ReclaimService = field(init=False)
    drain: StandaloneDrain = field(init=False)

    def run(self, claims: tuple[str, ...], scenario: Callable[[HeldClaims], Awaitable[None]]) -> list[Any]:
        """Run an agent's drain, and return the requests to the standalone service."""

        async def main() -> list[Any]:
            async with asyncio.timeout(3 * DEADLINE_S):
                service = HeldClaims(*claims)
                self.reclaim = ReclaimService(self.folder, "boot", [self.listener])
                self.drain = StandaloneDrain(lambda: self.settings, self.reclaim, service)
                await self.drain.prepare()
                await self.reclaim.start()
                self.drain.start()
                try:
                    await scenario(service)
                finally:
                    await self.reclaim.stop()
                    await self.drain.stop()
                return service.calls

        return asyncio.run(main())

    async def notice(self, seconds: float | None = None, description: str = "a test") -> None:
        deadline = None if seconds is None else STEADY.now() + timedelta(seconds=seconds)
        await self.reclaim.begin("notice", deadline=deadline, description=description)

    def is_draining(self) -> bool:
        return self.drain.draining

    def states(self) -> list[str]:
        return [record.state for record in self.reclaim.progress().claims]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_claims_are_released_one_by_one_and_reported(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.standalone.RECHECK_INTERVAL_S", 100 * DEADLINE_S)

    async def scenario(service: HeldClaims) -> None:
        assert not host.is_draining() and service.calls == []
        await host.reclaim.begin("hint", deadline=None, description="maybe")
        assert service.calls == [], "a hint releases nothing"
        await host.notice()
        await eventually_async(lambda: service.calls == [(WHY, False), (WHY, True)])
        assert host.is_draining() and host.states() == ["prepared", "prepared"]
        assert [record.pods for record in host.reclaim.progress().claims] == [(), ()]
        await service.release()
        await eventually_async(lambda: host.states() == ["prepared", "released"])
        assert host.listener.notifications == 0 and not host.reclaim.progress().complete
        await service.release()
        await eventually_async(lambda: host.listener.notifications > 0)
        assert host.states() == ["released", "released"]
        assert host.reclaim.progress().complete and not host.is_draining()
        await host.reclaim.cancel(everything=False)
        await eventually_async(lambda: service.calls[-1] == ("resume", ""))
        assert host.states() == []

    assert len(host.run(("a", "b"), scenario)) == 3


def test_a_restart_during_a_notice_suspends_claims_first(host: Host) -> None:
    async def noticed(service: HeldClaims) -> None:
        await host.notice()

    async def restarted(service: HeldClaims) -> None:
        assert service.calls[0] == (WHY, False)
        await eventually_async(lambda: host.reclaim.progress().complete)

    host.run((), noticed)
    assert host.run((), restarted) == [(WHY, False), (WHY, False), (WHY, True)]


def test_a_change_of_the_notice_changes_the_reason(host: Host) -> None:
    async def scenario(service: HeldClaims) -> None:
        await host.notice(600.0)
        await eventually_async(lambda: len(service.calls) == 2)
        await host.notice(300.0, "sooner")

    assert host.run(("a",), scenario)[-1] == ("this node is being reclaimed (operator: sooner)", "changed")


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_the_hook_gets_the_claim_and_the_notice(host: Host, seconds: float | None) -> None:
    output = host.folder / "variables"
    script = f"env | grep -E '^DRA_AGENT_(CLAIM|RECLAIM)_' > {output}"
    host.settings = ReclaimSettings(hook=("sh", "-c", script), hook_seconds=DEADLINE_S)

    async def scenario(service: HeldClaims) -> None:
        await host.notice(seconds)
        await eventually_async(lambda: len(service.calls) == 2)

    host.run(("a",), scenario)
    variables = dict(line.split("=", 1) for line in output.read_text().splitlines())
    deadline = variables.pop("DRA_AGENT_RECLAIM_DEADLINE")
    assert variables == {
        "DRA_AGENT_CLAIM_UID": "uid-a",
        "DRA_AGENT_CLAIM_NAME": "a",
        "DRA_AGENT_CLAIM_NAMESPACE": "ns",
        "DRA_AGENT_CLAIM_DEVICES": "v/gpu=0 v/gpu=1",
        "DRA_AGENT_RECLAIM_SOURCE": "operator",
    }
    assert (deadline == "") is (seconds is None) and len(deadline) in (0, len("2026-01-31T12:00:00+00:00"))


@pytest.mark.parametrize(
    ("hook_seconds", "seconds", "failure"),
    [
        (DEADLINE_S, None, "its hook ended with 3"),
        (DEADLINE_S, 600.0, "its hook ended with 3"),
        (600.0, 0.5, "its hook was not started in time"),
    ],
)
def test_a_hook_failure_is_reported_and_the_release_continues(
    host: Host, hook_seconds: float, seconds: float | None, failure: str
) -> None:
    host.settings = ReclaimSettings(hook=("sh", "-c", "exit 3"), hook_seconds=hook_seconds)

    async def scenario(service: HeldClaims) -> None:
        await host.notice(seconds)
        await eventually_async(lambda: (WHY, True) in service.calls)
        assert [record.unknown for record in host.reclaim.progress().claims] == [failure]

    host.run(("a",), scenario)
