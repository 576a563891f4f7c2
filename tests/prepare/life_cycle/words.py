"""What an agent of these tests is told, and what it answers: one JSON object a line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dra_agent.claim import ClaimDevice
from dra_agent.prepare.ledger import LedgerEntry


class Stop(msgspec.Struct, frozen=True):
    """What is to happen in a call, at which point, and how many such points are passed before."""

    how: Literal["", "kill", "hang", "fail"] = ""
    point: str = ""
    """A word of its name."""
    after: int = 0


class AgentSettings(msgspec.Struct, frozen=True):
    """Which agent of the host it is."""

    root: str
    name: str
    state_dir: str
    driver: str
    boot: str
    gpus: int
    shared: bool


class Call(msgspec.Struct, frozen=True):
    """What an agent is to do."""

    number: int
    what: Literal["prepare", "unprepare", "recover", "go on", "notice", "cancel", "set forward", "look"]
    uid: str = ""
    claim: dict[str, Any] = {}
    seconds: float = 0.0
    """Until the deadline of the call, or by which the clock is set forward."""
    stop: Stop = Stop()
    hung: int = 0
    """Number of the call that is to go on."""
    how: Literal["", "fail"] = ""


class Event(msgspec.Struct):
    """What an agent says."""

    number: int
    kind: Literal["ready", "answered", "refused", "hung", "broken"]
    error: str = ""
    text: str = ""
    retryable: bool = False
    devices: list[ClaimDevice] = []
    released: bool = False
    point: str = ""
    uid: str = ""
    fired: str = ""
    """The point at which the call was told to stop, if it came there."""
    late_s: float = 0.0
    """How long after its deadline the call was answered."""
    pid: int = 0
    problems: list[str] = []
    busy: list[str] = []
    entries: list[LedgerEntry] = []
    """The ledger, as the agent reads it in a turn."""
    claim_locks: list[str] = []
    device_locks: list[str] = []
