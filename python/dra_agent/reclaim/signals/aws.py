"""AWS: the instance metadata service, version 2, with its four signals.

Paths and payloads: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations",
"Scheduled events"; EC2 Auto Scaling user guide, "Retrieve the target lifecycle state through instance metadata".
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.settings import AwsSignals
from dra_agent.reclaim.signal import (
    Signal,
    SignalSink,
    SourceError,
    ascii_line,
    clamp_deadline,
    parse_time,
    to_local_clock,
    treated,
)
from dra_agent.reclaim.signals.http import MetadataService, Response
from dra_agent.reclaim.signals.polling import PollFunction, PollSchedule, poll_forever

TOKEN_TTL_S = 21600
"""Requested token lifetime: the maximum of the service."""
_RENEW_BEFORE_S = 60.0
_TOKEN = re.compile(r"[!-~]{1,1024}")
REQUEST_TIMEOUT_S = 2.0
SPOT_POLL_INTERVAL_S = 1.0
"""The notice comes 120 s before the interruption, and AWS recommends a check every 5 s (EC2 user guide): a drain needs
the time more than the local service needs rest."""
AUTOSCALING_POLL_INTERVAL_S = 2.0
"""The state has no deadline: the group waits for its lifecycle hooks only, by default at most an hour."""
REBALANCE_POLL_INTERVAL_S = 5.0
"""As AWS recommends for this path and spot notices (EC2 user guide)."""
MAINTENANCE_POLL_INTERVAL_S = 30.0
"""Events are scheduled days ahead."""
SPOT_DEFAULT_LEAD = timedelta(seconds=120)
SPOT_MAX_LEAD = timedelta(hours=1)
EVENT_MAX_LEAD = timedelta(days=400)
_DATA = "/latest/meta-data"
_GRANTS = "/latest/api/token"
_TERMINATING_STATES = {"Terminated", "Warmed:Terminated", "Warmed:Stopped", "Warmed:Hibernated"}
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

    Each path has its own connection: one that hangs must not delay an interruption notice.
    """

    def __init__(self, connect: Callable[[], MetadataService], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._services: dict[str, MetadataService] = {}
        self._token = ""
        self._renew_at_s = 0.0
        self._renewing = asyncio.Lock()

    async def get(self, path: str) -> Response | None:
        """Read a path; None for 404. Raises SourceError for every other status, and without a response."""
        token = await self._token_other_than(None)
        response = await self._request(path, token)
        if response.status == HTTPStatus.UNAUTHORIZED:
            response = await self._request(path, await self._token_other_than(token))
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        if response.status != HTTPStatus.OK:
            raise response.error()
        return response

    def close(self) -> None:
        """Close the connections."""
        for service in self._services.values():
            service.close()

    def _service(self, path: str) -> MetadataService:
        if path not in self._services:
            self._services[path] = self._connect()
        return self._services[path]

    async def _request(self, path: str, token: str) -> Response:
        headers = {"X-aws-ec2-metadata-token": token}
        return await self._service(path).request(path, headers=headers, timeout_s=REQUEST_TIMEOUT_S)

    async def _token_other_than(self, rejected: str | None) -> str:
        """Return the token: a new one if it has expired or is `rejected`."""
        async with self._renewing:
            if self._clock() >= self._renew_at_s or self._token == rejected:
                await self._renew()
            return self._token

    async def _renew(self) -> None:
        self._renew_at_s = 0.0
        try:
            response = await self._service(_GRANTS).request(
                _GRANTS,
                method="PUT",
                body=b"",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)},
                timeout_s=REQUEST_TIMEOUT_S,
            )
        except SourceError as error:
            # With the default hop limit of 1 the response with a token is dropped on its way into a pod.
            error.hint = "in a pod: use the host's network, or an IMDS hop limit of at least 2"
            raise
        if response.status != HTTPStatus.OK:
            raise response.error()
        token = response.text().strip()
        if not _TOKEN.fullmatch(token):
            raise SourceError("the response is not a session token")
        granted = response.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        seconds = min(int(granted), TOKEN_TTL_S) if re.fullmatch(r"\d{1,6}", granted) else TOKEN_TTL_S
        self._token = token
        self._renew_at_s = self._clock() + max(1.0, seconds - min(_RENEW_BEFORE_S, seconds / 10))


class AwsSource:
    """The instance metadata service of AWS, polled."""

    def __init__(
        self,
        endpoint: str,
        *,
        lead: timedelta,
        signals: AwsSignals = AwsSignals(),  # noqa: B008  (frozen)
        make_schedule: Callable[[float], PollSchedule] = PollSchedule,
        booted: datetime = STEADY.booted,
        connect: Callable[[str], MetadataService] = MetadataService,
    ) -> None:
        """`lead`: how long before the start of maintenance its hint becomes a notice.

        `booted`: when the host booted; events announced for an earlier time have happened. `connect` makes a
        connection to an endpoint.
        """
        MetadataService(endpoint)  # UsageError for an invalid address
        self._signals = signals
        self._booted = booted
        self._session = Session(lambda: connect(endpoint))
        self._lead = lead
        self._make_schedule = make_schedule

    @property
    def names(self) -> tuple[str, ...]:
        """The signals that are not ignored; the paths of others are not requested."""
        return tuple(f"aws.{name}" for name in AwsSignals.__struct_fields__ if getattr(self._signals, name) != "ignore")

    async def run(self, sink: SignalSink) -> None:
        """Poll each path at its own interval."""
        polls: list[tuple[str, PollFunction, float]] = [
            ("aws.spot", self.spot, SPOT_POLL_INTERVAL_S),
            ("aws.autoscaling", self.autoscaling, AUTOSCALING_POLL_INTERVAL_S),
            ("aws.rebalance", self.rebalance, REBALANCE_POLL_INTERVAL_S),
            ("aws.maintenance", self.maintenance, MAINTENANCE_POLL_INTERVAL_S),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for name, poll, every in polls:
                    if name in self.names:
                        group.create_task(poll_forever(name, poll, self._make_schedule(every), sink))
        finally:
            self._session.close()

    async def released(self) -> None:
        """Nothing waits for this host."""

    async def spot(self) -> Sequence[Signal]:
        """Poll the interruption notice of a spot instance, which cannot be withdrawn; raises SourceError."""
        response = await self._session.get(f"{_DATA}/spot/instance-action")
        if response is None:
            return ()
        action = _decode(response, _Action)
        if action.action not in ("terminate", "stop", "hibernate"):
            raise SourceError(f"instance-action {ascii_line(action.action)!r} is not known")
        now = response.received
        # Hibernation starts at once, independent of the time.
        if action.action == "hibernate":
            deadline, deadline_note = now, ""
        else:
            announced = _time(action.time)
            if self._is_over(announced, response):
                return ()
            deadline, deadline_note, _ = clamp_deadline(
                announced, ahead=response.ahead, now=now, default_lead=SPOT_DEFAULT_LEAD, max_lead=SPOT_MAX_LEAD
            )
        description = f"spot interruption: {action.action}"
        signal = Signal(
            "aws.spot", "notice", "instance-action", description, deadline, sticky=True, deadline_note=deadline_note
        )
        return _only(treated(signal, self._signals.spot))

    async def rebalance(self) -> Sequence[Signal]:
        """Poll the rebalance recommendation: the instance is at elevated risk."""
        response = await self._session.get(f"{_DATA}/events/recommendations/rebalance")
        if response is None:
            return ()
        # By the service's own clock: the name of the event must not change with the host's clock.
        noticed = _time(_decode(response, _Rebalance).noticeTime)
        kind = self._signals.rebalance
        return _only(treated(Signal("aws.rebalance", "notice", noticed.isoformat(), "rebalance recommendation"), kind))

    async def autoscaling(self) -> Sequence[Signal]:
        """Poll the target lifecycle state of the instance in its Auto Scaling group; raises SourceError."""
        response = await self._session.get(f"{_DATA}/autoscaling/target-lifecycle-state")
        if response is None:
            return ()
        state = response.text().strip()
        if state in _STAYING:
            return ()
        if state not in _TERMINATING_STATES:
            raise SourceError(f"target-lifecycle-state {ascii_line(state)!r} is not known")
        signal = Signal("aws.autoscaling", "notice", "target-lifecycle-state", f"Auto Scaling: {state}")
        return _only(treated(signal, self._signals.autoscaling))

    async def maintenance(self) -> Sequence[Signal]:
        """Scheduled events: a hint, and a notice once they are near."""
        response = await self._session.get(f"{_DATA}/events/maintenance/scheduled")
        if response is None:
            return ()
        kind = self._signals.maintenance
        signals = (treated(self._event(response, event), kind) for event in _decode(response, list[_Event], many=True))
        return tuple(signal for signal in signals if signal is not None)

    def _event(self, response: Response, event: _Event) -> Signal | None:
        if event.state.lower() in ("completed", "canceled", "cancelled"):
            return None
        now = response.received
        announced = _time(event.not_before)
        if self._is_over(announced, response):
            return None
        begins, deadline_note, is_plausible = clamp_deadline(
            announced, ahead=response.ahead, now=now, default_lead=self._lead, max_lead=EVENT_MAX_LEAD
        )
        near = event.code in _STOPS and is_plausible and begins - now <= self._lead
        name = ascii_line(event.event_id or event.code)
        description = f"scheduled {ascii_line(event.code)}"
        return Signal(
            "aws.maintenance",
            "notice" if near else "hint",
            name,
            description,
            begins,
            deadline_note=deadline_note,
            once="id",
        )

    def _is_over(self, announced: datetime, response: Response) -> bool:
        """Whether the host has booted since: the service still lists an event after the reboot it announced."""
        return to_local_clock(announced, response.ahead) < self._booted


def _only(signal: Signal | None) -> Sequence[Signal]:
    return () if signal is None else (signal,)


def _decode(response: Response, kind: Any, *, many: bool = False) -> Any:
    value = response.json(Any)
    try:
        # Some emulators of the service return one event instead of a list.
        return msgspec.convert([value] if many and isinstance(value, dict) else value, kind)
    except msgspec.DecodeError as error:
        raise SourceError(f"unexpected response of the service: {ascii_line(str(error))}") from error


def _time(text: str) -> datetime:
    try:
        return parse_time(text)
    except (ValueError, OverflowError) as error:
        raise SourceError(f"{ascii_line(text)!r} is not a time") from error
