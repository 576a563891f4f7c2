"""Prepares the claims of nominated pods, and reports the results to the scheduler.

What the scheduler and the agent know survives a restart of either: the allocation has the time from which the deadline
counts, the status has the result, and the ledger has the claims that are prepared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakValueDictionary

from dra_agent.binding.attempt import Attempt, WithdrawnError
from dra_agent.binding.condition_writer import ConditionWriter
from dra_agent.binding.conditions import PrepareOutcome, PublishedConditions, WaitingClaim, waiting_claim
from dra_agent.binding.nominated_pods import ClaimName, NominatedPods
from dra_agent.binding.unused_claims import UnusedClaims
from dra_agent.clock import wall_now
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.kinds import RESOURCE_CLAIMS
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.retry import Backoff
from dra_agent.status.events import PREPARE_FAILED, EventRecorder, ObjectReference
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

FIRST_POLL_S = 0.25
"""Seconds until a claim is read again: the pod is nominated shortly before the claim is allocated."""
POLL_S = 5.0
"""The longest interval of these reads; the scheduler reads the conditions at the same one."""
GET_TIMEOUT_S = 10.0
KNOWN_TIMEOUT_S = 30.0
"""Maximum seconds to wait for the first list of pods. No slice can be written while the API server does not respond."""
MAX_CONCURRENCY = 8
"""Claims that are prepared at once."""


class DeviceTaints(Protocol):
    """Taints of devices that could not be set up. A protocol, because the agent, which has them, is a layer above."""

    async def failed(self, devices: Iterable[str], message: str) -> None:
        """Taint these devices; returns when the taints are published, or after a short time."""

    async def completed(self, devices: Iterable[str]) -> None:
        """End earlier failures of these devices."""


class BindingService:
    """Prepares claims that wait for binding conditions, and writes their conditions, from `start` to `stop`.

    Lives on the event loop.
    """

    def __init__(
        self,
        api: ApiClient,
        ledger: JournalLedger,
        preparer: ClaimPreparer,
        check: Callable[[dict[str, Any]], None],
        taints: DeviceTaints,
        events: EventRecorder,
        *,
        node: str,
        driver: str,
        timeout_s: float,
        is_leader: Callable[[], bool],
        changed: Callable[[], None],
        refusal: Callable[[], str] = lambda: "",
        completed: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        """`preparer` prepares ahead and releases nothing else; `check` is `Preparer.check`.

        `timeout_s` counts from the allocation. `changed` is called when `is_ready` has changed. `refusal` as in
        Attempt. `completed` returns a claim as the kubelet's request would have it; None if it is the claim as read.
        """
        self._api = api
        self._taints = taints
        self._events = events
        self._node = node
        self._driver = driver
        self._timeout_s = timeout_s
        self._is_leader = is_leader
        self._changed = changed
        self._completed = completed
        self._poll_s = poll_s
        self._attempt = Attempt(preparer, check, refusal=refusal)
        self._writer = ConditionWriter(api, driver, node, changed)
        self._pods = NominatedPods(api, node, self._pods_changed)
        self._unused = UnusedClaims(
            api, ledger, preparer, driver=driver, lock_of=self._claim_lock, is_leader=is_leader, interval_s=poll_s
        )
        self._published = PublishedConditions(driver)
        self._was_ready = False
        self._slots = asyncio.Semaphore(MAX_CONCURRENCY)
        self._claim_locks: WeakValueDictionary[ClaimName, asyncio.Lock] = WeakValueDictionary()
        self._workers: dict[ClaimName, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()

    def start(self, *, follows_pods: bool) -> None:
        """Start; without `follows_pods` only claims that an earlier run prepared ahead are released."""
        self._tasks.append(supervisor().loop("unused claims", self._unused.run))
        if follows_pods:
            self._tasks.append(supervisor().loop("nominated pods", self._pods.run))

    async def stop(self) -> None:
        """Stop; claims stay prepared, and a call that runs on a thread ends there."""
        tasks = [*self._tasks, *self._workers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_ready(self) -> bool:
        """Whether devices may carry the conditions: pods would wait for an agent that cannot see or answer them."""
        return self._pods.is_permitted and not self._writer.problem

    async def wait_known(self) -> None:
        """Wait until `is_ready` has its first result, or for a time. Otherwise a restart would write slices twice."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KNOWN_TIMEOUT_S):
                await self._pods.is_known.wait()

    @property
    def problem(self) -> str:
        """Why no claim is prepared ahead; empty where that is not known."""
        return self._writer.problem or ("" if self._pods.error is None else str(self._pods.error))

    def inventory(self, plain: Callable[[], Inventory]) -> Callable[[], Inventory]:
        """Return `plain` with the conditions on the devices that the rules select, while this agent is ready."""
        return lambda: self._published.apply(plain()) if self.is_ready else plain()

    def _pods_changed(self) -> None:
        if self.is_ready != self._was_ready:
            self._was_ready = self.is_ready
            self._changed()
        for name in self._pods.claims() - self._workers.keys():
            self._workers[name] = supervisor().start_task(f"ahead {name.namespace}/{name.name}", self._follow(name))
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()

    async def _follow(self, name: ClaimName) -> None:
        """Serve one claim while a pod that uses it is nominated."""
        backoff = Backoff(first=FIRST_POLL_S, longest=self._poll_s)
        try:
            while name in self._pods.claims():
                try:
                    if self._is_leader() and await self._serve(name):
                        backoff.reset()
                except AgentError as error:
                    log.debug("claim of a nominated pod not served yet", extra={"reason": str(error)})
                except Exception:  # a defect with one claim must not end its reports
                    log.exception("claim of a nominated pod not served", extra={"claim_name": str(name)})
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.delay()):
                        await self._woken.wait()
        finally:
            del self._workers[name]

    async def _serve(self, name: ClaimName) -> bool:
        """Prepare the claim and report, if a pod waits for it; return whether it did."""
        if self._writer.problem:
            return False
        async with self._claim_lock(name):
            claim, waiting = await self._read(name)
            if waiting is None or waiting.is_decided:
                return False
            await self._prepare(name, claim, waiting)
        return True

    async def _prepare(self, name: ClaimName, claim: dict[str, Any], waiting: WaitingClaim) -> None:
        async def still_waiting() -> bool:
            try:
                return name in self._pods.claims() and _is_same(waiting, (await self._read(name))[1])
            except PermanentError:  # the claim is gone, or may not be read any more
                return False
            except AgentError:
                return True

        if self._completed is not None:
            claim = await self._completed(claim)
        async with self._slots:
            try:
                await self._decide(claim, waiting, still_waiting)
            except WithdrawnError:
                log.info("claim waits no longer", extra={"claim": waiting.uid})

    async def _decide(
        self, claim: dict[str, Any], waiting: WaitingClaim, still_waiting: Callable[[], Awaitable[bool]]
    ) -> None:
        names = sorted({key.device for key in waiting.devices})
        failure = await self._attempt.prepare(claim, self._deadline(waiting), still_waiting)
        if failure is None:
            await self._writer.write(waiting, PrepareOutcome(True, "SetUp"))
            await self._taints.completed(names)
            return
        message = f"not prepared on node {self._node}: {failure.message}"
        log.error("claim cannot be prepared ahead", extra={"claim": waiting.uid, "reason": failure.message})
        if failure.is_of_devices:
            # Before the condition: the scheduler would choose the same devices again.
            try:
                await self._taints.failed(names, failure.message)
            except AgentError as error:
                log.warning("devices that failed are not tainted", extra={"reason": str(error), "devices": names})
        self._events.record(
            PREPARE_FAILED, ObjectReference.claim(waiting.namespace, waiting.name, waiting.uid), message
        )
        await self._writer.write(waiting, PrepareOutcome(False, failure.reason, message))

    def _claim_lock(self, name: ClaimName) -> asyncio.Lock:
        """Return the lock of a claim: it is prepared, or compared and released, but not both at a time."""
        lock = self._claim_locks.get(name)
        if lock is None:
            lock = self._claim_locks[name] = asyncio.Lock()
        return lock

    async def _read(self, name: ClaimName) -> tuple[dict[str, Any], WaitingClaim | None]:
        claim = await self._api.get(RESOURCE_CLAIMS, name.name, name.namespace, timeout=GET_TIMEOUT_S)
        return claim, waiting_claim(claim, self._driver, self._node)

    def _deadline(self, waiting: WaitingClaim) -> Deadline:
        """Return the deadline of a claim, which may have passed. A difference of clocks adds no time."""
        age = 0.0
        if waiting.allocated_at is not None:
            age = max(0.0, (wall_now() - waiting.allocated_at).total_seconds())
        return Deadline.of(self._timeout_s - age)


def _is_same(one: WaitingClaim, other: WaitingClaim | None) -> bool:
    """Return whether it is the same allocation of the same claim."""
    return other is not None and (one.uid, one.devices, one.allocated_at) == (
        other.uid,
        other.devices,
        other.allocated_at,
    )
