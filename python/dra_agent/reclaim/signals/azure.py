"""Azure: the Scheduled Events of the metadata service, as far as they name this VM.

Azure documentation: "Scheduled Events for Linux VMs". Events are sent to every VM of a set, and are withdrawn by not
being there any more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.settings import AzureSignals, Treatment
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
from dra_agent.reclaim.signals.polling import PollSchedule, poll_forever

log = logging.getLogger(__name__)

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
VM_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
FIRST_REQUEST_TIMEOUT_S = 125.0
"""Seconds for the first list of events: it enables the service, which takes up to two minutes."""
FRESH_BOOT = timedelta(minutes=15)
"""How long after a boot a reboot that is listed as started is the one that the host comes from."""
REQUEST_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 1.0
_HEADERS = {"Metadata": "true"}
_ENDS = {"Preempt": timedelta(seconds=30), "Terminate": timedelta(minutes=5)}
"""Events that end the VM, with Azure's shortest warning: a notice as soon as announced."""
_STOPS = {"Reboot": timedelta(minutes=15), "Redeploy": timedelta(minutes=10)}
"""Events after which the VM continues without its memory: a hint, and a notice shortly before."""
_MAX_LEAD = timedelta(days=60)


class _Event(msgspec.Struct, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str
    resources: list[str]
    not_before: str = ""
    event_source: str = ""


class _Document(msgspec.Struct, rename="pascal"):
    events: list[Any]


class AzureSource:
    """The Scheduled Events of Azure, polled."""

    names = ("azure",)

    def __init__(
        self,
        endpoint: str,
        *,
        vm: str,
        lead: timedelta,
        acknowledge: bool,
        signals: AzureSignals = AzureSignals(),  # noqa: B008  (frozen)
        make_schedule: Callable[[float], PollSchedule] = PollSchedule,
        booted: datetime = STEADY.booted,
        connect: Callable[[str], MetadataService] = MetadataService,
    ) -> None:
        """`vm`: the VM's name, empty to read it. `acknowledge`: approve user-initiated events.

        `booted`: when the host booted; events announced for an earlier time have happened. `connect` makes a
        connection to an endpoint.
        """
        self._signals = signals
        self._booted = booted
        self._scheduled: set[str] = set()
        self._service = connect(endpoint)
        self._vm = vm
        self._lead = lead
        self._acknowledge = acknowledge
        self._make_schedule = make_schedule
        self._has_responded = False
        self._own_events: list[_Event] = []
        self._approved: set[str] = set()
        self._began: dict[str, datetime] = {}

    async def run(self, sink: SignalSink) -> None:
        """Poll once a second, as Azure recommends."""
        try:
            await poll_forever("azure", self.poll, self._make_schedule(POLL_INTERVAL_S), sink)
        finally:
            self._service.close()

    async def poll(self) -> Sequence[Signal]:
        """Poll the scheduled events that name this VM; raises SourceError."""
        if not self._vm:
            self._vm = await self._name()
        response = await self._request(EVENTS, REQUEST_TIMEOUT_S if self._has_responded else FIRST_REQUEST_TIMEOUT_S)
        self._has_responded = True
        document = response.json(_Document)
        try:
            # Invalid fields of events for other hosts are ignored.
            named = [event for event in document.events if _names(event, self._vm)]
            self._own_events = [
                event for event in msgspec.convert(named, list[_Event]) if event.event_status != "Completed"
            ]
        except msgspec.DecodeError as error:
            raise SourceError(f"unexpected response of the service: {ascii_line(str(error))}") from error
        present = {event.event_id for event in self._own_events}
        self._approved &= present
        self._began = {event: at for event, at in self._began.items() if event in present}
        self._scheduled &= present
        self._scheduled |= {event.event_id for event in self._own_events if event.event_status == "Scheduled"}
        signals = (treated(self._signal_of(response, event), self._treatment(event)) for event in self._own_events)
        return [signal for signal in signals if signal is not None]

    async def released(self) -> None:
        """Approve user-initiated events of this VM only; an approval cannot be withdrawn."""
        if not self._acknowledge:
            return
        for event in self._own_events:
            sole = {name.casefold() for name in event.resources} == {self._vm.casefold()}
            user_requested = event.event_source == "User" and event.event_type != "Preempt"
            if sole and user_requested and event.event_status == "Scheduled" and event.event_id not in self._approved:
                await self._approve(event)

    async def _approve(self, event: _Event) -> None:
        self._approved.add(event.event_id)
        body = msgspec.json.encode({"StartRequests": [{"EventId": event.event_id}]})
        event_fields = {"source": "azure", "event": ascii_line(event.event_id)}
        try:
            response = await self._service.request(
                EVENTS,
                method="POST",
                headers={**_HEADERS, "Content-Type": "application/json"},
                body=body,
                timeout_s=REQUEST_TIMEOUT_S,
            )
            if response.status != HTTPStatus.OK:
                raise response.error()
        except SourceError as error:
            log.warning(
                "the event could not be acknowledged; it waits its time", extra={**event_fields, "reason": str(error)}
            )
        else:
            log.info("event acknowledged: every claim is released", extra=event_fields)

    async def _name(self) -> str:
        response = await self._request(VM_NAME, REQUEST_TIMEOUT_S)
        name = response.text().strip()
        if not name or ascii_line(name) != name or "<" in name:
            raise SourceError("the response is not the name of a VM")
        return name

    async def _request(self, target: str, timeout_s: float) -> Response:
        response = await self._service.request(target, headers=_HEADERS, timeout_s=timeout_s)
        if response.status != HTTPStatus.OK:
            raise response.error()
        return response

    def _treatment(self, event: _Event) -> Treatment:
        name = event.event_type.lower()
        treatment: Treatment = getattr(self._signals, name if name in AzureSignals.__struct_fields__ else "other")
        return treatment

    def _signal_of(self, response: Response, event: _Event) -> Signal | None:
        now, started = response.received, event.event_status == "Started"
        warning = _ENDS.get(event.event_type) or _STOPS.get(event.event_type)
        begins, deadline_note, is_plausible = None, "", True
        if started:
            # It has started; the time of its first observation stays the deadline.
            begins = self._began.setdefault(event.event_id, now)
        elif event.not_before.strip():
            announced, usual = _time(event.not_before), warning or self._lead
            if to_local_clock(announced, response.ahead) < self._booted:
                return None
            begins, deadline_note, is_plausible = clamp_deadline(
                announced, ahead=response.ahead, now=now, default_lead=usual, max_lead=_MAX_LEAD
            )
        elif warning is not None:
            begins = self._began.setdefault(event.event_id, now) + warning
        near = started or (begins is not None and is_plausible and begins - now <= self._lead)
        # Started has no NotBefore. A reboot without an earlier event, on a host that has just booted, is over.
        over = started and event.event_id not in self._scheduled and now - self._booted < FRESH_BOOT
        stops = event.event_type in _STOPS and not over
        treated_as_notice = event.event_type not in _STOPS and self._treatment(event) == "notice"
        notice = event.event_type in _ENDS or ((stops or treated_as_notice) and near)
        description = f"{ascii_line(event.event_type)} ({ascii_line(event.event_status).lower()})"
        return Signal(
            "azure",
            "notice" if notice else "hint",
            ascii_line(event.event_id),
            description,
            begins,
            deadline_note=deadline_note,
            once="id",
        )


def _names(event: Any, vm: str) -> bool:
    resources = event.get("Resources") if isinstance(event, dict) else None
    names = resources if isinstance(resources, list) else []
    return vm.casefold() in (name.casefold() for name in names if isinstance(name, str))


def _time(text: str) -> datetime:
    with contextlib.suppress(ValueError, OverflowError):
        return parse_time(text)
    raise SourceError(f"NotBefore is {ascii_line(text)!r}, which is not a time")
