"""The notice file for claims whose pod requests it with an annotation, as if the claim itself had that configuration.

The pods for which a claim is reserved are read when it is prepared, so this is off by default. Containers mount the
file at their start: a claim that is prepared keeps what it has, also if an annotation changes or another pod joins it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dra_agent.api_object import Object, consumers_of, is_pod
from dra_agent.errors import AgentError
from dra_agent.kube_client.errors import ForbiddenError, NotFoundError
from dra_agent.prepare import allocation, record
from dra_agent.prepare.ledger import LedgerEntry

log = logging.getLogger(__name__)

ANNOTATION = "reclaim-notice"
"""The name after `<driver>/`. Its value is "true"; any other value requests nothing."""
CONFIGURATION = {"apiVersion": "dra-agent.internal/v1", "kind": "ReclaimNoticeConfig"}
MAX_PODS = 16
"""Pods of one claim that are read; the API permits 256 (status.reservedFor)."""


class PodReader(Protocol):
    """Reads pods: claim_pods.PodClient, and a fake one in tests."""

    async def get(self, namespace: str, name: str) -> Object:
        """Read a pod; raises the errors of dra_agent.kube_client."""
        ...


class Entries(Protocol):
    """Reads the ledger: JournalLedger, and a fake one in tests."""

    def get(self, uid: str) -> LedgerEntry | None:
        """Return the entry of a claim."""
        ...


class PodNotices:
    """Adds the configuration to claims. Used on the event loop."""

    def __init__(self, pods: PodReader, ledger: Entries, driver: str) -> None:
        self._pods = pods
        self._ledger = ledger
        self._driver = driver
        self._logged = False

    async def apply(self, claim: Object) -> Object:
        """Return the claim, with the configuration if one of its pods requests it.

        Raises:
            RetryableError: A pod cannot be read now.
        """
        try:
            plain = allocation.read(claim, self._driver)
            requesting = _with_configuration(claim, self._driver)
            requested = allocation.read(requesting, self._driver)
        except AgentError:
            return claim  # its reader reports it
        if not plain.devices:
            return claim
        if (known := self._digest(plain.uid)) is not None:
            if known == record.digest(requested):
                return requesting
            if known == record.digest(plain):
                return claim
        users = _pods(claim)
        found = await asyncio.gather(*(self._requests(plain.namespace, *user) for user in users))
        return requesting if any(found) else claim

    def _digest(self, uid: str) -> str | None:
        """Return the digest of the configuration with which a claim was prepared; None if it was not."""
        entry = self._ledger.get(uid)
        prepared = None if entry is None else record.read(entry)
        return None if prepared is None else prepared.config

    async def _requests(self, namespace: str, name: str, uid: str) -> bool:
        try:
            pod = await self._pods.get(namespace, name)
        except NotFoundError:
            return False
        except ForbiddenError as error:
            if not self._logged:
                log.warning(
                    "annotations of pods cannot be read, so none requests the notice file",
                    extra={"reason": str(error), "key": "pod_notices"},
                )
            self._logged = True
            return False
        metadata = pod.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        return metadata.get("uid") == uid and annotations.get(f"{self._driver}/{ANNOTATION}") == "true"


def _with_configuration(claim: Object, driver: str) -> Object:
    """Return a copy with the configuration as the last entry, which applies to all requests."""
    status: Mapping[str, Any] = claim.get("status") or {}
    allocated: Mapping[str, Any] = status.get("allocation") or {}
    devices: Mapping[str, Any] = allocated.get("devices") or {}
    entry = {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": dict(CONFIGURATION)}}
    config = [*(devices.get("config") or ()), entry]
    return {
        **claim,
        "status": {**status, "allocation": {**allocated, "devices": {**devices, "config": config}}},
    }


def _pods(claim: Object) -> Sequence[tuple[str, str]]:
    """Return names and UIDs of the pods for which a claim is reserved."""
    named = [
        (str(user["name"]), str(user["uid"]))
        for user in consumers_of(claim)
        if isinstance(user, Mapping) and is_pod(user) and user.get("name") and user.get("uid")
    ]
    return named[:MAX_PODS]
