"""AWS: the instance metadata service, version 2, with its four voices.

Paths and payloads: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations",
"Scheduled events"; EC2 Auto Scaling user guide, "Retrieve the target lifecycle state through instance metadata".
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.settings import AwsSignals
from dra_agent.reclaim.signal import (
    Signal,
    SignalSink,
    SourceError,
    clamp_deadline,
    parse_time,
    printable,
    to_local_clock,
    treated,
)
from dra_agent.reclaim.signals.http import Answer, MetadataService
from dra_agent.reclaim.signals.polling import Look, PollSchedule, keep_looking

TOKEN_SECONDS = 21600
"""Requested token lifetime: the maximum of the service."""
_RENEW_BEFORE = 60.0
_TOKEN = re.compile(r"[!-~]{1,1024}")
AT_MOST = 2.0
SPOT_WARNING = timedelta(seconds=120)
SPOT_MOST = timedelta(hours=1)
EVENT_MOST = timedelta(days=400)
_DATA = "/latest/meta-data"
_GRANTS = "/latest/api/token"
_LEAVING = {"Terminated", "Warmed:Terminated", "Warmed:Stopped", "Warmed:Hibernated"}
_STAYING = {"InService", "Standby", "Detached", "Warmed:Running"}
_STOPS = {"instance-stop", "instance-retirement", "instance-reboot", "system-reboot", "system-maintenance"}


class _Action(msgspec.Struct):
    action: str
    time: str


class _Rebalance(msgspec.Struct):
    noticeTime: str  # noqa: N815  (the service's spelling)


class _Event(msgspec.Struct, rename="pascal"):
    code: str
    not_before: str
    event_id: str = ""
    state: str = "active"
    description: str = ""


class Session:
    """Reads paths with a token that is renewed before it expires and when the service rejects it.

    Each path has a connection of its own: one that hangs must not keep an interruption notice waiting.
    """

    def __init__(self, connect: Callable[[], MetadataService], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._services: dict[str, MetadataService] = {}
        self._token = ""
        self._until = 0.0
        self._renewing = asyncio.Lock()

    async def get(self, path: str) -> Answer | None:
        """Read a path; None for 404."""
        token = await self._valid()
        answer = await self._ask(path, token)
        if answer.status == 401:
            answer = await self._ask(path, await self._valid(but=token))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise answer.refusal()
        return answer

    def close(self) -> None:
        """Hang up."""
        for service in self._services.values():
            service.close()

    def _service(self, path: str) -> MetadataService:
        if path not in self._services:
            self._services[path] = self._connect()
        return self._services[path]

    async def _ask(self, path: str, token: str) -> Answer:
        headers = {"X-aws-ec2-metadata-token": token}
        return await self._service(path).ask(path, headers=headers, at_most=AT_MOST)

    async def _valid(self, but: str | None = None) -> str:
        """Give the token, a new one where it has run out or is the one that was not taken."""
        async with self._renewing:
            if self._clock() >= self._until or self._token == but:
                await self._renew()
            return self._token

    async def _renew(self) -> None:
        self._until = 0.0
        try:
            answer = await self._service(_GRANTS).ask(
                _GRANTS,
                method="PUT",
                body=b"",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)},
                at_most=AT_MOST,
            )
        except SourceError as error:
            # With the default hop limit of 1 the response with a token is dropped on its way into a pod.
            error.hint = "in a pod: use the host's network, or an IMDS hop limit of at least 2"
            raise
        if answer.status != 200:
            raise answer.refusal()
        token = answer.text().strip()
        if not _TOKEN.fullmatch(token):
            raise SourceError("the session token that it gives is none")
        granted = answer.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        seconds = min(int(granted), TOKEN_SECONDS) if re.fullmatch(r"\d{1,6}", granted) else TOKEN_SECONDS
        self._token = token
        self._until = self._clock() + max(1.0, seconds - min(_RENEW_BEFORE, seconds / 10))


class AwsSource:
    """The source."""

    def __init__(
        self,
        endpoint: str,
        *,
        lead: timedelta,
        signals: AwsSignals = AwsSignals(),  # noqa: B008  (frozen)
        pace: Callable[[float], PollSchedule] = PollSchedule,
        booted: datetime = STEADY.booted,
    ) -> None:
        """`lead`: how long before the start of maintenance its hint becomes a notice.

        `booted`: when the host booted; what was announced for an earlier time has happened.
        """
        MetadataService(endpoint)  # UsageError where it is none
        self._signals = signals
        self._booted = booted
        self._session = Session(lambda: MetadataService(endpoint))
        self._lead = lead
        self._pace = pace

    @property
    def names(self) -> tuple[str, ...]:
        """The signals that are not ignored; the paths of others are not requested."""
        return tuple(f"aws.{name}" for name in AwsSignals.__struct_fields__ if getattr(self._signals, name) != "ignore")

    async def run(self, watch: SignalSink) -> None:
        """Poll each path at its own interval."""
        looks: list[tuple[str, Look, float]] = [
            ("aws.spot", self.spot, 1.0),
            ("aws.autoscaling", self.autoscaling, 2.0),
            ("aws.rebalance", self.rebalance, 5.0),
            ("aws.maintenance", self.maintenance, 30.0),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for name, look, every in looks:
                    if name in self.names:
                        group.create_task(keep_looking(name, look, self._pace(every), watch))
        finally:
            self._session.close()

    async def released(self) -> None:
        """Nothing waits for this host."""

    async def spot(self) -> Sequence[Signal]:
        """The interruption notice of a spot instance; it cannot be withdrawn."""
        answer = await self._session.get(f"{_DATA}/spot/instance-action")
        if answer is None:
            return ()
        action = _decode(answer, _Action)
        if action.action not in ("terminate", "stop", "hibernate"):
            raise SourceError(f"instance-action {printable(action.action)!r} is not known")
        now = answer.received
        # Hibernation starts at once, whatever the time is.
        if action.action == "hibernate":
            deadline, doubt = now, ""
        else:
            announced = _time(action.time)
            if self._is_over(announced, answer):
                return ()
            deadline, doubt = clamp_deadline(announced, ahead=answer.ahead, now=now, usual=SPOT_WARNING, most=SPOT_MOST)
        what = f"spot interruption: {action.action}"
        reading = Signal("aws.spot", "notice", "instance-action", what, deadline, sticky=True, deadline_note=doubt)
        return _only(treated(reading, self._signals.spot))

    async def rebalance(self) -> Sequence[Signal]:
        """The recommendation to move on: the instance is at elevated risk."""
        answer = await self._session.get(f"{_DATA}/events/recommendations/rebalance")
        if answer is None:
            return ()
        # By the service's own clock: what names the event must not change with ours.
        noticed = _time(_decode(answer, _Rebalance).noticeTime)
        kind = self._signals.rebalance
        return _only(treated(Signal("aws.rebalance", "notice", noticed.isoformat(), "rebalance recommendation"), kind))

    async def autoscaling(self) -> Sequence[Signal]:
        """What the Auto Scaling group is about to do with the instance."""
        answer = await self._session.get(f"{_DATA}/autoscaling/target-lifecycle-state")
        if answer is None:
            return ()
        state = answer.text().strip()
        if state in _STAYING:
            return ()
        if state not in _LEAVING:
            raise SourceError(f"target-lifecycle-state {printable(state)!r} is not known")
        reading = Signal("aws.autoscaling", "notice", "target-lifecycle-state", f"Auto Scaling: {state}")
        return _only(treated(reading, self._signals.autoscaling))

    async def maintenance(self) -> Sequence[Signal]:
        """Scheduled events: a hint, and a notice once they are near."""
        answer = await self._session.get(f"{_DATA}/events/maintenance/scheduled")
        if answer is None:
            return ()
        kind = self._signals.maintenance
        readings = (treated(self._event(answer, event), kind) for event in _decode(answer, list[_Event], many=True))
        return tuple(reading for reading in readings if reading is not None)

    def _event(self, answer: Answer, event: _Event) -> Signal | None:
        if event.state.lower() in ("completed", "canceled", "cancelled"):
            return None
        now = answer.received
        announced = _time(event.not_before)
        if self._is_over(announced, answer):
            return None
        begins, doubt = clamp_deadline(announced, ahead=answer.ahead, now=now, usual=self._lead, most=EVENT_MOST)
        near = event.code in _STOPS and not doubt.endswith("to be true") and begins - now <= self._lead
        name = printable(event.event_id or event.code)
        what = f"scheduled {printable(event.code)}"
        return Signal(
            "aws.maintenance", "notice" if near else "hint", name, what, begins, deadline_note=doubt, once="id"
        )

    def _is_over(self, announced: datetime, answer: Answer) -> bool:
        """Whether the host has booted since: the service goes on listing an event after the reboot it announced."""
        return to_local_clock(announced, answer.ahead) < self._booted


def _only(reading: Signal | None) -> Sequence[Signal]:
    return () if reading is None else (reading,)


def _decode(answer: Answer, kind: Any, *, many: bool = False) -> Any:
    value = answer.json(Any)
    try:
        # Some emulators of the service return one event instead of a list.
        return msgspec.convert([value] if many and isinstance(value, dict) else value, kind)
    except msgspec.DecodeError as error:
        raise SourceError(f"unexpected response of the service: {printable(str(error))}") from error


def _time(text: str) -> datetime:
    try:
        return parse_time(text)
    except (ValueError, OverflowError) as error:
        raise SourceError(f"{printable(text)!r} is not a time") from error
