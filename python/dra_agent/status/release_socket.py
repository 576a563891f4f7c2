"""`claims.sock` in the state directory: release of prepared claims by an operator in Kubernetes mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dra_agent.control_socket import protocol
from dra_agent.control_socket.server import Server
from dra_agent.status.orphaned_claims import OrphanedClaims

SOCKET = "claims.sock"
MAX_LINE_BYTES = 4096
"""Bytes of one request."""
RESPONSE_TIMEOUT_S = 120.0
"""The response follows after vendor set-ups are rolled back."""


class Release(msgspec.Struct, tag_field="op", tag="release", forbid_unknown_fields=True):
    """Release one claim."""

    claim: str
    """UID, or NAMESPACE/NAME."""
    force: bool = False


class Health(msgspec.Struct, tag_field="op", tag="health", forbid_unknown_fields=True):
    """Devices of prepared claims that cannot be used, and why."""


_requests: msgspec.json.Decoder[Release | Health] = msgspec.json.Decoder(Release | Health)


class ReleaseSocket(Server):
    """Releases claims for an operator."""

    def __init__(self, state_dir: Path, claims: OrphanedClaims) -> None:
        self._claims = claims
        super().__init__(state_dir / SOCKET, self._do, line_limit=MAX_LINE_BYTES)

    async def _do(self, line: bytes) -> Any:
        request = decode_request(line)
        if isinstance(request, Health):
            return self._claims.unusable()
        return await self._claims.release(request.claim, force=request.force)


def decode_request(line: bytes) -> Release | Health:
    """Read one request; UsageError for an invalid one."""
    return protocol.decode_request(line, _requests)


def call(state_dir: Path, request: Release | Health) -> Any:
    """Send a request to the agent of a state directory; raises its error, or RetryableError if none responds."""
    return protocol.call(state_dir / SOCKET, request, timeout=RESPONSE_TIMEOUT_S)
