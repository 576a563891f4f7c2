"""Validates and stores applied objects, all or none. The spec of a stored claim never changes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from dra_agent.api_object import Object, identity_of
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.standalone.claim import FAILED, ApplyResult
from dra_agent.standalone.index import ClaimIndex
from dra_agent.standalone.store import Store
from dra_agent.standalone.stored_form import CLAIM, CLASS, received
from dra_agent.standalone.waiting import digest_of

MAX_CLAIMS = 50_000
"""Claims that are kept: some 40 MiB of index, and a few seconds of a start."""


def store_all(values: list[Object], store: Store, claims: ClaimIndex) -> list[ApplyResult]:
    """Store DeviceClasses and ResourceClaims, all or none, and return the result of each.

    Raises:
        PermanentError: A kind that is not kept, a spec that differs from the kept one, too many claims.
        RetryableError: A claim of that name is being deleted, or the store cannot be written.
    """
    values = [received(value) for value in values]
    _check(values, claims)
    changed = [_changed(value, claims) for value in values if value["kind"] == CLAIM]
    classes: dict[str, Object] = {}
    applied = [_class(value, store, classes) if value["kind"] == CLASS else _claim(value, claims) for value in values]
    claims.put((claim for claim in changed if claim is not None), classes)
    return applied


def now() -> str:
    """Return the time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check(values: list[Object], claims: ClaimIndex) -> None:
    seen: set[tuple[str, str]] = set()
    for value in values:
        if value["kind"] not in (CLASS, CLAIM):
            raise PermanentError(
                f"{value['kind']} is a kind that the agent does not store", hint=f"apply {CLASS} and {CLAIM} objects"
            )
        if value["kind"] == CLASS:
            continue
        key = namespace, name = identity_of(value)
        if key in seen:
            raise PermanentError(f"claim {namespace}/{name} is there twice", hint="remove one of them")
        seen.add(key)
        known = claims.find(namespace, name)
        if known is None:
            continue
        if known.uid in claims.deleting:
            raise RetryableError(f"claim {namespace}/{name} is being deleted", hint="apply it again once it is deleted")
        spec = value["spec"]
        if known.digest != digest_of(spec) and claims.read(known)["spec"] != spec:
            raise PermanentError(
                f"claim {namespace}/{name}: spec cannot be changed once it is applied",
                hint=f"delete it first: dra-agent claim delete {name} -n {namespace}",
            )
    count = len(claims) + sum(claims.find(*key) is None for key in seen)
    if count > MAX_CLAIMS:
        raise PermanentError(
            f"{count} claims would be kept, {MAX_CLAIMS} at most",
            hint="delete those that are not needed any more, see `dra-agent claim list`",
        )


def _class(value: Object, store: Store, changed: dict[str, Object]) -> ApplyResult:
    """Add a class to the changed ones if it differs from the kept one, or from an earlier one of the request."""
    name = value["metadata"]["name"]
    known = changed.get(name) or store.get(CLASS, "", name)
    if known is not None and known["spec"] == value["spec"]:
        return ApplyResult(CLASS, name, "unchanged")
    changed[name] = _stamped(value, known)
    return ApplyResult(CLASS, name, "created" if known is None else "configured")


def _claim(value: Object, claims: ClaimIndex) -> ApplyResult:
    namespace, name = identity_of(value)
    known = claims.find(namespace, name)
    if known is None:
        return ApplyResult(CLAIM, name, "created", namespace)
    unchanged = known.uid in claims.waiting or known.uid in claims.allocated
    return ApplyResult(CLAIM, name, "unchanged" if unchanged else "configured", namespace)


def _changed(value: Object, claims: ClaimIndex) -> Object | None:
    """Return the claim to store; None if it is stored like that already."""
    namespace, name = identity_of(value)
    known = claims.find(namespace, name)
    if known is None:
        return _stamped({**value, "metadata": {**value["metadata"], "namespace": namespace}}, None)
    if known.uid in claims.waiting or known.uid in claims.allocated:
        return None
    claim = claims.read(known)
    return None if claim["metadata"].get("annotations", {}).pop(FAILED, None) is None else claim


def _stamped(value: Object, known: Object | None) -> Object:
    before = known["metadata"] if known else {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
    kept = {key: before[key] for key in ("uid", "creationTimestamp")}
    return {**value, "metadata": {**value["metadata"], **kept}}


VALIDATION_TIMEOUT_S = 30.0
"""For all objects of one request, the time that it waits for earlier requests included."""


class Validator:
    """One thread that validates, so that the event loop is not blocked."""

    def __init__(self, validate: Callable[[Object], list[str]]) -> None:
        """`validate` returns the problems of an object."""
        self._validate = validate
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="validation")

    async def problems(self, values: Sequence[Object], *, timeout_s: float) -> list[str]:
        """Return the problems of the objects.

        Raises:
            RetryableError: they are not validated after `timeout_s` seconds.
        """
        found: list[str] = []
        try:
            async with asyncio.timeout(timeout_s):
                for value in values:
                    found += await asyncio.get_running_loop().run_in_executor(self._thread, self._validate, value)
        except TimeoutError:
            raise RetryableError(
                f"the objects could not be validated within {timeout_s:.0f} s",
                hint="apply fewer objects at a time, or objects with simpler selectors",
            ) from None
        return found

    def stop(self) -> None:
        """Start no further validation; a running one ends by its own budget."""
        self._thread.shutdown(wait=False, cancel_futures=True)
