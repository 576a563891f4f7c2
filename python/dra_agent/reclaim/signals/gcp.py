"""GCP: the metadata server's `preempted` and `maintenance-event`, each with a request that waits for a change.

Compute Engine documentation: "Querying VM metadata" (wait_for_change, last_etag, timeout_sec), "Preemptible VM
instances", "Monitor and plan for a host maintenance event".
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus

from dra_agent.clock import STEADY
from dra_agent.reclaim.settings import GcpSignals, Treatment
from dra_agent.reclaim.signal import Kind, Signal, SignalSink, SourceError, ascii_line, treated
from dra_agent.reclaim.signals.http import MetadataService, Response
from dra_agent.reclaim.signals.polling import PollFunction, PollSchedule, poll_forever

LONG_POLL_S = 15
"""Seconds that one request waits for a change. A dead connection is detected after that and `_RESPONSE_MARGIN_S`,
within a notice of 30 s."""
_RESPONSE_MARGIN_S = 3.0
FIRST_REQUEST_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 1.0
"""Minimum seconds between two requests; the request itself waits for a change."""
_ETAG = re.compile(r"[!-~]{1,256}")
_ROOT = "/computeMetadata/v1/instance"


class MetadataValue:
    """One entry of the metadata server, and the values that it can have.

    No change is missed: a request has the etag of the previous response, and returns at once if that is old.
    """

    def __init__(
        self,
        service: MetadataService,
        path: str,
        values: dict[str, tuple[str, timedelta] | None],
        name: str,
        *,
        treatment: Treatment = "notice",
        lead: timedelta | None = None,
    ) -> None:
        """`values`: the meaning of each value, as text and time to the end; None for "nothing".

        `lead`: how long before the end a hint becomes a notice; None: it is a notice at once.
        """
        self._treatment = treatment
        self._lead = lead
        self._restored_since: dict[str, datetime] = {}
        self._becomes_notice_at: datetime | None = None
        self._service = service
        self._path = path
        self._known_values = values
        self._name = name
        self._etag = ""
        self._value = ""
        self._since: datetime | None = None

    async def poll(self) -> Sequence[Signal]:
        """Read the value, and later wait for its next change; an unchanged value is valid too. Raises SourceError."""
        headers = {"Metadata-Flavor": "Google"}
        if self._etag:
            wait = self._wait()
            query = f"?wait_for_change=true&last_etag={self._etag}&timeout_sec={wait}"
            response = await self._checked_request(_ROOT + self._path + query, headers, wait + _RESPONSE_MARGIN_S)
        else:
            response = await self._checked_request(_ROOT + self._path, headers, FIRST_REQUEST_TIMEOUT_S)
        value = response.text().strip().upper()
        if value not in self._known_values:
            raise SourceError(f"{self._path} is {ascii_line(value)!r}, which is not a known value")
        etag = response.headers.get("etag", "")
        # Without an etag a waiting request could miss a change, so the value is polled.
        self._etag = etag if _ETAG.fullmatch(etag) and not set(etag) & set("&#%+") else ""
        if value != self._value:
            self._value, self._since = value, self._restored_since.pop(value, response.received)
        meaning = self._known_values[value]
        self._becomes_notice_at = None
        if meaning is None:
            self._restored_since.clear()
            return ()
        description, remaining = meaning
        assert self._since is not None
        deadline = self._since + remaining
        near = self._lead is None or deadline - response.received <= self._lead
        if self._lead is not None and not near:
            self._becomes_notice_at = deadline - self._lead
        lasting = near and self._name == "gcp.preempted"
        kind: Kind = "notice" if near else "hint"
        signal = treated(
            Signal(self._name, kind, value, description, deadline, sticky=lasting, once="word"), self._treatment
        )
        return () if signal is None else (signal,)

    def recall(self, signal: Signal) -> None:
        """Count the time to the end from when an earlier run of the agent first received the value."""
        meaning = self._known_values.get(signal.event)
        if signal.source == self._name and meaning is not None and signal.deadline is not None:
            self._restored_since[signal.event] = signal.deadline - meaning[1]

    def _wait(self) -> int:
        """Return the seconds for which a request waits: at most until the hint becomes a notice."""
        if self._becomes_notice_at is None:
            return LONG_POLL_S
        return min(LONG_POLL_S, max(1, math.ceil((self._becomes_notice_at - STEADY.now()).total_seconds())))

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    async def _checked_request(self, target: str, headers: dict[str, str], timeout_s: float) -> Response:
        try:
            response = await self._service.request(target, headers=headers, timeout_s=timeout_s)
        except SourceError:
            self._etag = ""  # the next request does not wait: it returns the current state
            raise
        if response.status != HTTPStatus.OK:
            self._etag = ""
            raise response.error()
        if response.headers.get("metadata-flavor", "").lower() != "google":
            self._etag = ""
            raise SourceError("not a response of Google's metadata server: it has no Metadata-Flavor")
        return response


class GcpSource:
    """The metadata server of Google Cloud, with requests that wait for a change."""

    def __init__(
        self,
        endpoint: str,
        *,
        preemption: timedelta,
        maintenance: timedelta,
        lead: timedelta,
        signals: GcpSignals = GcpSignals(),  # noqa: B008  (frozen)
        make_schedule: Callable[[float], PollSchedule] = PollSchedule,
        connect: Callable[[str], MetadataService] = MetadataService,
    ) -> None:
        """`preemption` and `maintenance`: from the value to the end of the instance.

        `lead`: how long before announced maintenance its hint becomes a notice. `connect` makes a connection to an
        endpoint.
        """
        self._make_schedule = make_schedule
        values = {
            "gcp.preempted": MetadataValue(
                connect(endpoint),
                "/preempted",
                {"FALSE": None, "TRUE": ("the instance is preempted", preemption)},
                "gcp.preempted",
                treatment=signals.preempted,
            ),
            # An instance that migrates continues to run, and its claims stay valid.
            "gcp.maintenance": MetadataValue(
                connect(endpoint),
                "/maintenance-event",
                {
                    "NONE": None,
                    "MIGRATE_ON_HOST_MAINTENANCE": None,
                    "TERMINATE_ON_HOST_MAINTENANCE": ("host maintenance ends the instance", maintenance),
                },
                "gcp.maintenance",
                treatment=signals.maintenance,
                lead=lead,
            ),
        }
        ignored = {f"gcp.{name}" for name in GcpSignals.__struct_fields__ if getattr(signals, name) == "ignore"}
        self._values = {name: value for name, value in values.items() if name not in ignored}

    @property
    def names(self) -> tuple[str, ...]:
        """The signals that are not ignored; the values of others are not requested."""
        return tuple(self._values)

    @property
    def polls(self) -> dict[str, PollFunction]:
        """The function that reads the value of each signal."""
        return {name: value.poll for name, value in self._values.items()}

    def recall(self, signals: Sequence[Signal]) -> None:
        """Restore the signals of an earlier run in this boot."""
        for signal in signals:
            for value in self._values.values():
                value.recall(signal)

    async def run(self, sink: SignalSink) -> None:
        """Keep one long-polling request for each value, on its own connection."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, poll in self.polls.items():
                    group.create_task(poll_forever(name, poll, self._make_schedule(POLL_INTERVAL_S), sink))
        finally:
            for value in self._values.values():
                value.close()

    async def released(self) -> None:
        """Nothing waits for this host."""
