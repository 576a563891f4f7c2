"""GCP: the metadata server's `preempted` and `maintenance-event`, each with a question that waits for a change.

Compute Engine documentation: "Querying VM metadata" (wait_for_change, last_etag, timeout_sec), "Preemptible VM
instances", "Monitor and plan for a host maintenance event".
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from dra_agent.clock import STEADY
from dra_agent.reclaim.settings import GcpSignals, Treatment
from dra_agent.reclaim.signal import Kind, Signal, SignalSink, SourceError, printable, treated
from dra_agent.reclaim.signals.http import Answer, MetadataService
from dra_agent.reclaim.signals.polling import Look, PollSchedule, keep_looking

WAIT = 15
"""Seconds that one question waits for a change. A connection that died without a word is noticed after that and
`_LATE`, which a notice of 30 s outlasts."""
_LATE = 3.0
FIRST = 5.0
EVERY = 1.0
"""Seconds between two questions at least; the question itself is what waits."""
_ETAG = re.compile(r"[!-~]{1,256}")
_ROOT = "/computeMetadata/v1/instance"


class MetadataValue:
    """One value of the metadata server, and the words that it can be.

    No change is missed: a request has the etag of the previous response, and returns at once if that is old.
    """

    def __init__(
        self,
        endpoint: str,
        path: str,
        words: dict[str, tuple[str, timedelta] | None],
        name: str,
        *,
        treatment: Treatment = "notice",
        lead: timedelta | None = None,
    ) -> None:
        """`words`: what each value means, as text and time to the end; None for "nothing".

        `lead`: how long before the end a hint becomes a notice; None: it is a notice at once.
        """
        self._treatment = treatment
        self._lead = lead
        self._known: dict[str, datetime] = {}
        self._turns: datetime | None = None
        self._service = MetadataService(endpoint)
        self._path = path
        self._words = words
        self._name = name
        self._etag = ""
        self._word = ""
        self._since: datetime | None = None

    async def look(self) -> Sequence[Signal]:
        """Read the value first, then wait for its next change; an unchanged value is valid too."""
        headers = {"Metadata-Flavor": "Google"}
        if self._etag:
            wait = self._wait()
            query = f"?wait_for_change=true&last_etag={self._etag}&timeout_sec={wait}"
            answer = await self._asked(_ROOT + self._path + query, headers, wait + _LATE)
        else:
            answer = await self._asked(_ROOT + self._path, headers, FIRST)
        word = answer.text().strip().upper()
        if word not in self._words:
            raise SourceError(f"{self._path} is {printable(word)!r}, which is not a known value")
        etag = answer.headers.get("etag", "")
        # Without an etag a waiting request could miss a change, so the value is polled.
        self._etag = etag if _ETAG.fullmatch(etag) and not set(etag) & set("&#%+") else ""
        if word != self._word:
            self._word, self._since = word, self._known.pop(word, answer.received)
        meaning = self._words[word]
        self._turns = None
        if meaning is None:
            self._known.clear()
            return ()
        what, left = meaning
        assert self._since is not None
        deadline = self._since + left
        near = self._lead is None or deadline - answer.received <= self._lead
        if self._lead is not None and not near:
            self._turns = deadline - self._lead
        lasting = near and self._name == "gcp.preempted"
        kind: Kind = "notice" if near else "hint"
        reading = treated(Signal(self._name, kind, word, what, deadline, sticky=lasting, once="word"), self._treatment)
        return () if reading is None else (reading,)

    def recall(self, reading: Signal) -> None:
        """Count the time to the end from when an earlier run of the agent first saw the word."""
        meaning = self._words.get(reading.event)
        if reading.source == self._name and meaning is not None and reading.deadline is not None:
            self._known[reading.event] = reading.deadline - meaning[1]

    def _wait(self) -> int:
        """Seconds for which a question waits: not past the moment at which the hint becomes a notice."""
        if self._turns is None:
            return WAIT
        return min(WAIT, max(1, math.ceil((self._turns - STEADY.now()).total_seconds())))

    def close(self) -> None:
        """Hang up."""
        self._service.close()

    async def _asked(self, target: str, headers: dict[str, str], at_most: float) -> Answer:
        try:
            answer = await self._service.ask(target, headers=headers, at_most=at_most)
        except SourceError:
            self._etag = ""  # the next request does not wait: it returns the current state
            raise
        if answer.status != 200:
            self._etag = ""
            raise answer.refusal()
        if answer.headers.get("metadata-flavor", "").lower() != "google":
            self._etag = ""
            raise SourceError("not a response of Google's metadata server: it has no Metadata-Flavor")
        return answer


class GcpSource:
    """The source."""

    def __init__(
        self,
        endpoint: str,
        *,
        preemption: timedelta,
        maintenance: timedelta,
        lead: timedelta,
        signals: GcpSignals = GcpSignals(),  # noqa: B008  (frozen)
        pace: Callable[[float], PollSchedule] = PollSchedule,
    ) -> None:
        """`preemption` and `maintenance`: from the word to the end of the instance.

        `lead`: how long before announced maintenance its hint becomes a notice.
        """
        self._pace = pace
        values = {
            "gcp.preempted": MetadataValue(
                endpoint,
                "/preempted",
                {"FALSE": None, "TRUE": ("the instance is preempted", preemption)},
                "gcp.preempted",
                treatment=signals.preempted,
            ),
            # An instance that migrates goes on where it is: its claims have nothing to fear.
            "gcp.maintenance": MetadataValue(
                endpoint,
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

    def recall(self, readings: Sequence[Signal]) -> None:
        """Restore the signals of an earlier run in this boot."""
        for reading in readings:
            for value in self._values.values():
                value.recall(reading)

    async def run(self, watch: SignalSink) -> None:
        """Keep one question waiting for each value, on a connection of its own."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, value in self._values.items():
                    look: Look = value.look
                    group.create_task(keep_looking(name, look, self._pace(EVERY), watch))
        finally:
            for value in self._values.values():
                value.close()

    async def released(self) -> None:
        """Nothing waits for this host."""
