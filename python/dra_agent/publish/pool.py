"""Reconciles the published slices of one pool: planned from scratch each time, written in order, retried.

Pools do not wait for each other: each has its own task, and its own delay after a failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import (
    RESOURCE_SLICES,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    UnavailableError,
)
from dra_agent.kube_client.log_deduplicator import LogDeduplicator
from dra_agent.publish.feature_gates import used
from dra_agent.publish.plan import Planner, PublishContext
from dra_agent.publish.slice_store import is_well_formed
from dra_agent.retry import Backoff
from dra_agent.slices import Slice, Write

log = logging.getLogger(__name__)

EXTERNAL_CHANGE_RESET_S = 60.0
"""Seconds without an external change after which the next one is repaired quickly again."""
EXTERNAL_CHANGE_WARN_COUNT = 4
"""External changes in a row that indicate another writer."""
RETRY_AFTER_S = 300.0
"""Seconds after which the pool is planned again without a trigger; this sends no request."""
STANDBY_INTERVAL_S = 1.0
"""Seconds between two checks whether this instance is the leader: other processes decide it, too."""
MAX_ROUNDS = 5
"""Plans that follow each other at once; more means that something undoes every write."""


class PoolReconciler:
    """Publishes one pool for as long as `run` runs."""

    def __init__(self, context: PublishContext, name: str) -> None:
        self._context = context
        self.name = name
        self._planner = Planner(context, name)
        self._backoff = Backoff(first=0.25, longest=60.0, urgent=context.urgent)
        self._refused = Backoff(first=5.0, longest=300.0)
        """For errors that only another configuration of the cluster or of the agent resolves."""
        self._external_change_backoff = Backoff(first=0.5, longest=30.0)
        self._external_change_at = float("-inf")
        self._external_change_pending = False
        """Whether the next plan is made because of a disturbance."""
        self._writing = False
        self._events_during_write: set[str] = set()
        """Slices with watch events during a write: either this write or an external change."""
        self._not_before = float("-inf")
        """No attempt before this time, unless it is urgent: Retry-After of the server."""
        self._due: float | None = 0.0
        self._woken = asyncio.Event()
        self._write_uncertain = False
        """Whether a write may or may not have happened: list before the next."""
        self._desired: Inventory | None = None
        """The devices at the start of the current attempt."""
        self._failed_with: int | None = None
        """Fingerprint of the last slices that could not be published."""
        self._log_dedup = LogDeduplicator()
        self.error: AgentError | None = None
        self.settled = False
        """Whether the published slices are the desired ones; False from `enqueue` until a plan has no write."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Devices that cannot be published."""
        return self._planner.problems

    def enqueue(self, delay: float = 0.0) -> None:
        """Plan again in `delay` seconds, or earlier where that was due earlier."""
        self.settled = False
        due = time.monotonic() + delay
        if not self._context.urgent():
            due = max(due, self._not_before)
        if self._due is None or due < self._due:
            self._due = due
        self._woken.set()

    def on_external_change(self, slices: set[str]) -> None:
        """Repair slices that were changed externally, with a growing delay.

        The watch may report the pool's own write before its response arrives; the response decides.
        """
        if self._writing:
            self._events_during_write |= slices
            return
        now = time.monotonic()
        if now - self._external_change_at > EXTERNAL_CHANGE_RESET_S:
            self._external_change_backoff.reset()
        self._external_change_at = now
        if not self._external_change_pending:
            self._external_change_pending = True
            self.enqueue(self._external_change_backoff.delay())
            if self._external_change_backoff.failures == EXTERNAL_CHANGE_WARN_COUNT:
                log.warning("another client repeatedly changes the slices", extra={"pool": self.name})

    def reset_backoff(self) -> None:
        """Reset the delay: a restarted kubelet may delete the slices again."""
        self._external_change_backoff.reset()
        self.enqueue()

    async def run(self) -> None:
        """Publish until it is cancelled."""
        while True:
            await self._wait()
            if not self._context.published.complete:
                self._due = None
                continue
            if not self._context.is_leader():
                self._due = time.monotonic() + STANDBY_INTERVAL_S
                continue
            self._due = time.monotonic() + RETRY_AFTER_S
            self._external_change_pending = False
            try:
                self._desired = self._planner.desired()
                await self._publish()
            except AgentError as error:
                self._failed(error)
            except Exception as error:
                # A defect or an unexpected response must not end the publishing of the pool.
                log.exception("slices cannot be published because of a defect", extra={"pool": self.name})
                self._failed(RetryableError(f"a defect: {error!r}", where=f"pool {self.name}"))
            else:
                self._succeeded()
            self._desired = None

    async def _wait(self) -> None:
        while True:
            self._woken.clear()
            remaining_s = None if self._due is None else self._due - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                return
            # If both the event and the timeout fire, the event is cleared before the plan: one that is set after a plan
            # was set during it.
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await self._woken.wait()

    async def _publish(self) -> None:
        if self._write_uncertain:
            await self._context.following.refresh()
            self._write_uncertain = False
        for _ in range(MAX_ROUNDS):
            writes = await self._planner.plan()
            if not writes:
                return
            self.settled = False
            for write in writes:
                if not self._context.is_leader():
                    self.enqueue(STANDBY_INTERVAL_S)
                    return
                if not await self._write(write):
                    break
        if self._woken.is_set():
            return  # the devices change faster than they can be written, and the next plan is due
        raise UnavailableError(
            "the slices differ from those that were written",
            where=f"pool {self.name}",
            hint="find the client that changes them: metadata.managedFields names it",
        )

    async def _write(self, write: Write) -> bool:
        """Carry out one write; whether the plan still holds after it."""
        context = self._context
        name = write.slice["metadata"].get("name", "")
        self._writing = True
        try:
            response = await self._send(write)
        except NotFoundError:
            if write.op == "create":
                raise
            # The updated slice was deleted: plan again.
            context.published.deleted(write.slice)
            context.ownership.invalidate()
            return False
        except (InvalidObjectError, ForbiddenError) as error:
            if self._planner.refused(write.slice, error):
                return False
            raise
        except (ConflictError, UnavailableError):
            self._write_uncertain = True
            raise
        finally:
            self._writing = False
            during_write, self._events_during_write = self._events_during_write, set()
        if response is not None and not is_well_formed(response):
            self._write_uncertain = True
            raise UnavailableError("the response to a write is not a ResourceSlice", where=f"pool {self.name}")
        context.tally.record_write(write.op)
        if context.access is not None:
            context.access.succeeded()
        extra = {"op": write.op, "slice": name or write.slice["metadata"].get("generateName"), "reason": write.reason}
        if response is None:
            log.info("slice written", extra=extra)
            self._attribute_events(name, during_write)
            return True
        context.published.wrote(response)
        self._attribute_events(
            response["metadata"]["name"] if context.published.is_newest(response) else None, during_write
        )
        log.info("slice written", extra={**extra, "slice": response["metadata"]["name"]})
        if self._planner.learn(write.slice, response):
            return False
        context.gates.record_stored(used(response))
        return True

    async def _send(self, write: Write) -> Slice | None:
        """Return the server's response; None for a deletion."""
        context = self._context
        if write.op == "update":
            return await context.api.replace(RESOURCE_SLICES, write.slice)
        if write.op == "create":
            return await context.api.create(RESOURCE_SLICES, write.slice)
        metadata = write.slice["metadata"]
        with suppress(NotFoundError):
            await context.api.delete(
                RESOURCE_SLICES, metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"]
            )
        context.published.deleted(write.slice)
        return None

    def _attribute_events(self, written: str | None, during_write: set[str]) -> None:
        """Of the watch events during a write, those of the slice `written` are the pool's own."""
        if others := during_write - {written}:
            self.on_external_change(others)

    def _failed(self, error: AgentError) -> None:
        self._context.tally.record_failure(error)
        if self._context.access is not None:
            self._context.access.failed(error)
        tried = self._fingerprint(self._desired)
        if tried != self._failed_with:
            # The delays grew for other devices: a new taint must not wait as long as a failure that lasts for an hour.
            self._failed_with = tried
            self._backoff.reset()
            self._refused.reset()
        backoff = self._refused if isinstance(error, PermanentError) else self._backoff
        delay = backoff.delay(error)
        if self._log_dedup.should_log(error):
            log.warning(
                "slices cannot be published, trying again",
                extra={"pool": self.name, "reason": str(error), "seconds": round(delay, 1)},
            )
        self.error, self.settled = error, False
        self._due = time.monotonic() + delay
        if getattr(error, "retry_after", None) is not None:
            self._not_before = self._due
        if self._woken.is_set() and self._fingerprint() != tried:
            self.enqueue()

    def _fingerprint(self, desired: Inventory | None = None) -> int | None:
        """Return the fingerprint of the desired slices; None if computing them fails, which is reported elsewhere."""
        with suppress(Exception):
            return self._planner.fingerprint(desired or self._planner.desired())
        return None

    def _succeeded(self) -> None:
        if self._log_dedup.is_over():
            log.info("slices are published again", extra={"pool": self.name})
        dropped = self._context.tally.gates_off.get(self.name)
        if dropped is not None and dropped.gates and not set(dropped.gates) & self._context.gates.off:
            del self._context.tally.gates_off[self.name]
            log.info("the API server takes all fields again", extra={"pool": self.name, "gates": dropped.gates})
        self.error, self.settled = None, not self._woken.is_set()
        self._failed_with = None
        self._backoff.reset()
        self._refused.reset()
