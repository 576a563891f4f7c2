"""Calls to agents and their events: one JSON object per line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dra_agent.claim import ClaimDevice
from dra_agent.prepare.ledger import LedgerEntry


class Interruption(msgspec.Struct, frozen=True):
    """A kill, hang or failure in a call: at which point, after how many passes of such points."""

    action: Literal["", "kill", "hang", "fail"] = ""
    point: str = ""
    """A part of the name of the point."""
    after: int = 0


class AgentSettings(msgspec.Struct, frozen=True):
    """The settings of an agent."""

    root: str
    name: str
    state_dir: str
    driver: str
    boot: str
    gpus: int
    shared: bool


class Call(msgspec.Struct, frozen=True):
    """A call to an agent."""

    number: int
    what: Literal["prepare", "unprepare", "recover", "resume", "notice", "cancel", "set forward", "look"]
    uid: str = ""
    claim: dict[str, Any] = {}
    seconds: float = 0.0
    """Until the deadline of the call, or by which the clock is advanced."""
    interruption: Interruption = Interruption()
    hung: int = 0
    """The number of the hanging call to resume."""
    action: Literal["", "fail"] = ""


class Event(msgspec.Struct):
    """An event of an agent."""

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
    """The point at which the call was interrupted, if it reached it."""
    late_s: float = 0.0
    """Delay of the response after its deadline."""
    pid: int = 0
    problems: list[str] = []
    busy: list[str] = []
    entries: list[LedgerEntry] = []
    """The ledger, read during a lease."""
    claim_locks: list[str] = []
    device_locks: list[str] = []
