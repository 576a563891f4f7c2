"""Writes the result for a claim into its status, by server-side apply with a separate field manager.

Another manager than the one of status/claim_status.py: each removes the conditions that it no longer applies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_agent.binding.conditions import ConditionNames, PrepareOutcome, WaitingClaim, status_entries, waiting_claim
from dra_agent.clock import wall_now
from dra_agent.errors import PermanentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.kinds import RESOURCE_CLAIMS
from dra_agent.status.permission import lacks_permission

log = logging.getLogger(__name__)

GRANT = "patch on resourceclaims/status, and associated-node:patch on resourceclaims/driver named after the driver"


class ConditionWriter:
    """Writes the conditions of one driver on one node."""

    def __init__(self, api: ApiClient, driver: str, node: str, refused: Callable[[], None]) -> None:
        """`refused` is called when the API server does not let this agent write the conditions."""
        self._api = api
        self._driver = driver
        self._node = node
        self._refused = refused
        self.problem = ""
        """Why nothing can be written; empty where that is not known. It stays until the agent restarts, because without
        the conditions nothing is written that could show that the permission was granted."""

    async def write(self, claim: WaitingClaim, outcome: PrepareOutcome) -> None:
        """Write the outcome for all devices that the scheduler waits for.

        Raises:
            RetryableError: The API server is not available, or the claim was replaced.
            PermanentError: It refuses the write, or the claim is gone.
        """
        now = wall_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            # The uid is a precondition: a claim of the same name is not this one.
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": status_entries(self._driver, claim.devices, outcome, now)},
        }
        try:
            stored = await self._api.apply(
                RESOURCE_CLAIMS,
                claim.name,
                body,
                claim.namespace,
                field_manager=f"{self._driver}/binding",
                subresource="status",
            )
        except PermanentError as error:
            if lacks_permission(error):
                self._stop(f"{error.message}; grant {GRANT}")
            raise
        found = waiting_claim(stored, self._driver, self._node)
        if found is not None and not found.is_decided:
            self._stop("the API server dropped status.devices: enable its feature gate DRAResourceClaimDeviceStatus")
            raise PermanentError("the API server dropped status.devices", where=str(claim))
        name = ConditionNames.of(self._driver)[0 if outcome.is_prepared else 1]
        log.info("binding condition written", extra={"claim": claim.uid, "condition": name, "reason": outcome.reason})

    def _stop(self, problem: str) -> None:
        if not self.problem:
            log.error("binding conditions cannot be written, so they are not published", extra={"reason": problem})
        self.problem = problem
        self._refused()
