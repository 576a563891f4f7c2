"""Kubernetes Events (events.k8s.io/v1) on claims and the Node.

Recording never waits and never fails. Repetitions are counted in the existing Event; Events that come too fast, or
cannot be written are dropped and logged. Reasons are listed in docs/reference/events.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from dra_agent.clock import STEADY
from dra_agent.errors import AgentError, RetryableError
from dra_agent.kube_client import EVENTS, NODES, RESOURCE_CLAIMS, ApiClient, ForbiddenError, Kind
from dra_agent.kube_client.request_rate import RequestRate
from dra_agent.printable import printable
from dra_agent.retry import Backoff
from dra_agent.status.permission import RETRY_AFTER_S, PermissionMonitor
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

MAX_BURST = 20.0
"""Writes at once."""
WRITE_INTERVAL_S = 3.0
"""Seconds for one more write after that."""
REPEAT_AFTER_S = 60.0
"""Seconds between two writes of one Event's count."""
SERIES_EXPIRE_AFTER_S = 1800.0
"""Seconds without a repeat after which the next one is a new Event; the API server keeps Events for an hour."""
MAX_PENDING = 256
"""Maximum of pending and of recorded Events."""
MAX_TRIES = 4
_MAX_NOTE_BYTES = 1024
_MAX_NAME_CHARS = 253
_MAX_INSTANCE_CHARS = 128
_TERMINATING = "NamespaceTerminating"
"""Cause of a 403 for a namespace that is being deleted (k8s.io/api/core/v1, NamespaceTerminatingCause)."""
_GRANT = "create and patch on events of events.k8s.io"


class Reason(NamedTuple):
    """The action, as in the Event API."""

    name: str
    action: str
    type: Literal["Normal", "Warning"] = "Warning"


PREPARE_FAILED = Reason("PrepareFailed", "Preparing")
DEVICE_HELD = Reason("DeviceHeld", "Preparing")
DEVICE_LOST = Reason("DeviceLost", "Watching")
DEVICE_UNHEALTHY = Reason("DeviceUnhealthy", "Watching")
DEVICE_HEALTHY = Reason("DeviceHealthy", "Watching", "Normal")
LINKS_DEGRADED = Reason("LinksDegraded", "Watching")
LINKS_RESTORED = Reason("LinksRestored", "Watching", "Normal")
SECOND_MANAGER = Reason("SecondManager", "Publishing")
CLAIM_GONE = Reason("ClaimGone", "Releasing")
SLICES_REFUSED = Reason("SlicesRefused", "Publishing")
FIELDS_DROPPED = Reason("FieldsDropped", "Publishing")
RECLAIM_HINT = Reason("ReclaimHint", "Reclaiming", "Normal")
RECLAIM_NOTICE = Reason("ReclaimNotice", "Reclaiming")
RECLAIM_CANCELLED = Reason("ReclaimCancelled", "Reclaiming", "Normal")
CLAIMS_RELEASED = Reason("ClaimsReleased", "Reclaiming", "Normal")
CLAIMS_NOT_RELEASED = Reason("ClaimsNotReleased", "Reclaiming")
REASONS = (
    PREPARE_FAILED,
    DEVICE_HELD,
    DEVICE_LOST,
    DEVICE_UNHEALTHY,
    DEVICE_HEALTHY,
    LINKS_DEGRADED,
    LINKS_RESTORED,
    SECOND_MANAGER,
    SLICES_REFUSED,
    FIELDS_DROPPED,
    RECLAIM_HINT,
    RECLAIM_NOTICE,
    RECLAIM_CANCELLED,
    CLAIMS_RELEASED,
    CLAIMS_NOT_RELEASED,
    CLAIM_GONE,
)


class ObjectReference(NamedTuple):
    """The object that an Event is about."""

    kind: Kind
    name: str
    namespace: str | None = None
    uid: str = ""

    @classmethod
    def claim(cls, namespace: str, name: str, uid: str) -> ObjectReference:
        """Name a ResourceClaim."""
        return cls(RESOURCE_CLAIMS, name, namespace, uid)

    @classmethod
    def node(cls, name: str) -> ObjectReference:
        """Name a Node; its uid is its name, as the kubelet writes it: `kubectl describe node` selects by that."""
        return cls(NODES, name, None, name)


@dataclass
class _Series:
    """One Event, and how often it happened."""

    reason: Reason
    subject: ObjectReference
    note: str
    first: datetime
    last: datetime
    count: int = 1
    written: bool = False
    wrote: float = 0.0
    """When, in the loop's time."""


class EventRecorder:
    """Records Events of one driver on one node; `record` may be called on any thread."""

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        node: str,
        *,
        burst: float = MAX_BURST,
        interval_s: float = WRITE_INTERVAL_S,
        repeat: float = REPEAT_AFTER_S,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        self._api = api
        self._driver = driver
        self.node = node
        self._repeat = repeat
        self._permission = PermissionMonitor("Events are not written", _GRANT, retry_after_s=retry_after_s)
        self._series: OrderedDict[tuple[Reason, ObjectReference, str], _Series] = OrderedDict()
        self._due: dict[tuple[Reason, ObjectReference, str], float] = {}
        self.written = 0
        """Events, and counts of Events, that the API server accepted since the start."""
        self.lost = 0
        """Events that were recorded and not written since the start."""
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._rate = RequestRate(1 / interval_s, burst, self._loop.time)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to write."""
        self._refilled = self._loop.time()
        self._task = supervisor().loop("events", self._run)

    async def stop(self) -> None:
        """Stop; Events that were not written are lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._log_lost(len(self._due))

    def record(self, reason: Reason, subject: ObjectReference, note: str) -> None:
        """Record an event; a repetition is counted."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._record, reason, subject, note)

    def _record(self, reason: Reason, subject: ObjectReference, note: str) -> None:
        key = (reason, subject, note)
        now = STEADY.now()
        known = self._series.get(key)
        if known is not None and (now - known.last).total_seconds() < SERIES_EXPIRE_AFTER_S:
            known.last = now
            known.count += 1
            self._series.move_to_end(key)
            self._due.setdefault(key, known.wrote + self._repeat if known.written else self._loop.time())
        elif len(self._due) >= MAX_PENDING:
            self._log_lost(1)
            return
        else:
            self._series[key] = _Series(reason, subject, note, now, now)
            self._due[key] = self._loop.time()
            self._drop_old()
        self._woken.set()

    def _drop_old(self) -> None:
        for key in list(self._series):
            if len(self._series) <= MAX_PENDING:
                return
            if key not in self._due:
                del self._series[key]

    def _log_lost(self, count: int) -> None:
        if count:
            self.lost += count
            log.warning("Events are lost", extra={"events": count, "since_start": self.lost})

    async def _run(self) -> None:
        while True:
            while not self._due:
                self._woken.clear()
                await self._woken.wait()
            key, due = min(self._due.items(), key=lambda item: item[1])
            wait = due - self._loop.time()
            if wait > 0:
                self._woken.clear()
                await self._wait_for_more(wait)
                continue
            if wait_s := self._rate.reserve():
                await asyncio.sleep(wait_s)
            self._due.pop(key)
            await self._write_with_retries(self._series[key])

    async def _wait_for_more(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _write_with_retries(self, series: _Series) -> None:
        backoff = Backoff(first=1.0, longest=30.0)
        for attempt in range(MAX_TRIES):
            try:
                await self._write(series)
                self._permission.granted()
            except ForbiddenError as error:
                if any(cause.reason == _TERMINATING for cause in error.details.causes):
                    return  # no reader is left
                pause = self._permission.refused(error)
                if attempt + 1 == MAX_TRIES:
                    waiting = len(self._due)
                    self._due.clear()
                    self._log_lost(waiting + 1)
                await asyncio.sleep(pause)
            except RetryableError as error:
                if attempt + 1 == MAX_TRIES:
                    self._log_failure(series, error)
                    return
                await asyncio.sleep(backoff.delay(error))
            except AgentError as error:
                self._log_failure(series, error)
                return
            except Exception:  # a bug here must not end all Events
                log.exception("Event not written", extra={"event": series.reason.name})
                return
            else:
                return

    def _log_failure(self, series: _Series, error: AgentError) -> None:
        self.lost += 1
        log.warning("Event not written", extra={"event": series.reason.name, "note": series.note, "reason": str(error)})

    async def _write(self, series: _Series) -> None:
        """Apply the whole Event: this creates it, updates its count, or creates it again after it expired."""
        count, namespace = series.count, series.subject.namespace or "default"
        event = self._event(series, count)
        await self._api.apply(EVENTS, event["metadata"]["name"], event, namespace, field_manager=self._driver)
        series.written = True
        self.written += 1
        series.wrote = self._loop.time()

    def _event(self, series: _Series, count: int) -> dict[str, Any]:
        subject = series.subject
        suffix = f".{int(series.first.timestamp() * 1_000_000):x}"
        regarding = {"kind": subject.kind.kind, "apiVersion": subject.kind.api_version, "name": subject.name}
        if subject.namespace:
            regarding["namespace"] = subject.namespace
        if subject.uid:
            regarding["uid"] = subject.uid
        event: dict[str, Any] = {
            # The same at each write: only the series of an Event may ever change.
            "metadata": {"name": subject.name[: _MAX_NAME_CHARS - len(suffix)].rstrip(".-") + suffix},
            "eventTime": _micro(series.first),
            "reportingController": self._driver,
            "reportingInstance": self.node[:_MAX_INSTANCE_CHARS],
            "action": series.reason.action,
            "reason": series.reason.name,
            "regarding": regarding,
            "note": _cut(printable(series.note)),
            "type": series.reason.type,
        }
        if count > 1:
            event["series"] = {"count": count, "lastObservedTime": _micro(series.last)}
        return event


def _cut(note: str) -> str:
    """Fit a note into the API's limit, which counts bytes."""
    data = note.encode()
    return note if len(data) <= _MAX_NOTE_BYTES else data[: _MAX_NOTE_BYTES - 4].decode(errors="ignore") + "…"


def _micro(time: datetime) -> str:
    return STEADY.to_wall(time).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
