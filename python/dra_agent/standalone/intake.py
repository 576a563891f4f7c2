"""What applied objects change, and their validation. The spec of a stored claim never changes."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from dra_agent.api_object import Object, identity_of
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.standalone.claim import FAILED, ApplyResult
from dra_agent.standalone.groups import digest_of
from dra_agent.standalone.index import ClaimIndex
from dra_agent.standalone.store import Store
from dra_agent.standalone.stored_form import CLAIM, CLASS, received

MAX_CLAIMS = 50_000
"""Claims that are kept: some 40 MiB of index, and a few seconds of a start."""


class Incoming(NamedTuple):
    """An object of a request, in the stored form."""

    value: Object
    key: tuple[str, str]
    """Namespace and name."""
    digest: bytes
    """Of its spec."""


@dataclass(slots=True)
class Change:
    """What a request changes, and its results in the order of its objects."""

    results: list[ApplyResult] = field(default_factory=list)
    classes: dict[str, Object] = field(default_factory=dict)
    """New and changed classes, by name."""
    new: list[Incoming] = field(default_factory=list)
    changed: list[Incoming] = field(default_factory=list)
    """Stored claims that are to be tried again."""

    def claims(self) -> list[tuple[Object, bytes]]:
        """Return the claims to store, each with the digest of its spec; new ones get their uid and time here."""
        created = now()
        new = [(_stamped(one.value, created, namespace=one.key[0]), one.digest) for one in self.new]
        return [*new, *((one.value, one.digest) for one in self.changed)]


def receive(values: Iterable[Object]) -> list[Incoming]:
    """Return the objects of a request in the stored form. It needs no lock, and most of the time of a long request.

    Raises PermanentError for a kind that is not kept, and for a claim that is there twice.
    """
    incoming: list[Incoming] = []
    seen: set[tuple[str, str]] = set()
    for value in map(received, values):
        if value["kind"] not in (CLASS, CLAIM):
            raise PermanentError(
                f"{value['kind']} is a kind that the agent does not store", hint=f"apply {CLASS} and {CLAIM} objects"
            )
        key = namespace, name = identity_of(value)
        if value["kind"] == CLAIM and key in seen:
            raise PermanentError(f"claim {namespace}/{name} is there twice", hint="remove one of them")
        if value["kind"] == CLAIM:
            seen.add(key)
        incoming.append(Incoming(value, key, digest_of(value["spec"])))
    return incoming


def plan(incoming: Iterable[Incoming], store: Store, claims: ClaimIndex) -> Change:
    """Return what a request changes, without changing anything. The lock of the queue is held.

    Raises:
        PermanentError: A spec that differs from the kept one, or too many claims.
        RetryableError: A claim of that name is being deleted, or the store cannot be read.
    """
    change = Change()
    for one in incoming:
        change.results.append(
            _class(one.value, store, change.classes) if one.value["kind"] == CLASS else _claim(one, claims, change)
        )
    count = len(claims) + len(change.new)
    if count > MAX_CLAIMS:
        raise PermanentError(
            f"{count} claims would be kept, {MAX_CLAIMS} at most",
            hint="delete those that are not needed any more, see `dra-agent claim list`",
        )
    return change


def now() -> str:
    """Return the time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: TID251 - creationTimestamp of an object


def _class(value: Object, store: Store, changed: dict[str, Object]) -> ApplyResult:
    """Add a class to the changed ones if it differs from the kept one, or from an earlier one of the request."""
    name = value["metadata"]["name"]
    known = changed.get(name) or store.get(CLASS, "", name)
    if known is not None and known["spec"] == value["spec"]:
        return ApplyResult(CLASS, name, "unchanged")
    changed[name] = _stamped(value, now(), known)
    return ApplyResult(CLASS, name, "created" if known is None else "configured")


def _claim(one: Incoming, claims: ClaimIndex, change: Change) -> ApplyResult:
    namespace, name = one.key
    known = claims.find(namespace, name)
    if known is None:
        change.new.append(one)
        return ApplyResult(CLAIM, name, "created", namespace)
    if known.uid in claims.deleting:
        raise RetryableError(f"claim {namespace}/{name} is being deleted", hint="apply it again once it is deleted")
    if known.digest != one.digest and claims.read(known)["spec"] != one.value["spec"]:
        raise PermanentError(
            f"claim {namespace}/{name}: spec cannot be changed once it is applied",
            hint=f"delete it first: dra-agent claim delete {name} -n {namespace}",
        )
    if known.uid in claims.waiting or known.uid in claims.allocated:
        return ApplyResult(CLAIM, name, "unchanged", namespace)
    claim = claims.read(known)
    if claim["metadata"].get("annotations", {}).pop(FAILED, None) is not None:
        change.changed.append(Incoming(claim, one.key, known.digest))
    return ApplyResult(CLAIM, name, "configured", namespace)


def _stamped(value: Object, created: str, known: Object | None = None, **metadata: str) -> Object:
    """Return an object with the metadata that the agent sets: of the stored one, or as created at this time."""
    before = known["metadata"] if known else {"uid": str(uuid.uuid4()), "creationTimestamp": created}
    kept = {key: before[key] for key in ("uid", "creationTimestamp")}
    return {**value, "metadata": {**value["metadata"], **metadata, **kept}}


VALIDATION_TIMEOUT_S = 30.0
"""For all objects of one request, the time that it waits for earlier requests included."""


VALIDATION_TURN_S = 0.05
"""Seconds of one request before those of others have a turn."""


class Validator:
    """One thread that validates, so that the event loop is not blocked."""

    def __init__(self, validate: Callable[[Object], list[str]], clock: Callable[[], float] = time.monotonic) -> None:
        """`validate` returns the problems of an object."""
        self._validate = validate
        self._clock = clock
        self._thread = DaemonExecutor(1, "validation")

    async def problems(self, values: Sequence[Object], *, timeout_s: float) -> list[str]:
        """Return the problems of the objects.

        Raises:
            RetryableError: they are not validated after `timeout_s` seconds.
        """
        found: list[str] = []
        remaining = deque(values)
        try:
            async with asyncio.timeout(timeout_s):
                while remaining:
                    found += await asyncio.get_running_loop().run_in_executor(self._thread, self._some, remaining)
        except TimeoutError:
            raise RetryableError(
                f"the objects could not be validated within {timeout_s:.0f} s",
                hint="apply fewer objects at a time, or objects with simpler selectors",
            ) from None
        return found

    def _some(self, remaining: deque[Object]) -> list[str]:
        """Validate objects for a short time, at least one: other requests have a turn, and may give up, in between."""
        found: list[str] = []
        end = self._clock() + VALIDATION_TURN_S
        while remaining:
            found += self._validate(remaining.popleft())
            if self._clock() >= end:
                break
        return found

    def stop(self) -> None:
        """Start no further validation; a running one ends by its own budget."""
        self._thread.shutdown(wait=False, cancel_futures=True)
