"""Requests of the command line to an agent in standalone mode, and the client that sends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dra_agent.api_object import allocation_of
from dra_agent.control_socket import protocol
from dra_agent.control_socket.protocol import Connection
from dra_agent.errors import UsageError

SOCKET = "agent.sock"
"""Its name in the state directory."""

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Bytes of one request."""


class Apply(msgspec.Struct, tag_field="op", tag="apply", forbid_unknown_fields=True, omit_defaults=True):
    """Store DeviceClasses and ResourceClaims, all or none."""

    objects: list[dict[str, Any]]
    whole: bool = True
    """The response has the ResourceClaims; False: `claim` of their views is empty, and nothing is read from the disk.

    Sent only if it is False, because agents of earlier versions refuse it."""


class Plan(msgspec.Struct, tag_field="op", tag="plan", forbid_unknown_fields=True):
    """Check objects as `Apply` does, and store nothing; the response has the results that it would have."""

    objects: list[dict[str, Any]]


class Get(msgspec.Struct, tag_field="op", tag="get", forbid_unknown_fields=True):
    """One claim; with `wait`, up to so many seconds until it is prepared, failed or deleted."""

    namespace: str
    name: str
    wait: float = 0.0


class ListClaims(msgspec.Struct, tag_field="op", tag="list", forbid_unknown_fields=True):
    """Every claim in one response, for clients of earlier versions: `ListPage` is smaller."""


MAX_PAGE_CLAIMS = 1000
"""Claims of a page with their ResourceClaims."""
MAX_BRIEF_PAGE_CLAIMS = 5000
"""Claims of a page without them: between two pages, both sides wait for their turns."""


class ListPage(msgspec.Struct, tag_field="op", tag="list-page", forbid_unknown_fields=True):
    """Some claims, oldest first; the response has `claims`, and `next` if there may be more."""

    after: int = 0
    """`next` of the response before."""
    limit: int = MAX_PAGE_CLAIMS
    """A response may have fewer."""
    allocated: bool = False
    """Only claims that hold devices."""
    whole: bool = True
    """With the ResourceClaims; False: `claim` is empty, and nothing is read from the disk."""


class ListClasses(msgspec.Struct, tag_field="op", tag="classes", forbid_unknown_fields=True):
    """Every DeviceClass."""


class Delete(msgspec.Struct, tag_field="op", tag="delete", forbid_unknown_fields=True):
    """Release a claim, or delete a class; `wait` seconds for the release to be complete."""

    kind: str
    name: str
    namespace: str = ""
    wait: float = 0.0


class ReleaseRun(msgspec.Struct, tag_field="op", tag="release-run", forbid_unknown_fields=True):
    """Release the claim of a run, if it has the run's token, and refuse one with this token that is applied later."""

    namespace: str
    name: str
    token: Annotated[str, msgspec.Meta(max_length=64)]
    wait: float = 0.0
    """Seconds for the release to be complete."""


class State(msgspec.Struct, tag_field="op", tag="state", forbid_unknown_fields=True):
    """The input of a what-if query: node, driver, classes, slices and allocated claims."""


Request = Apply | Plan | Get | ListClaims | ListPage | ListClasses | Delete | ReleaseRun | State


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def decode_request(line: bytes) -> Request:
    """Read one request; raises UsageError for an invalid one."""
    return protocol.decode_request(line, _requests)


RESPONSE_TIMEOUT_S = 60.0
"""Seconds in addition to the `wait` of a request."""


class Client:
    """A connection to the agent of this host."""

    def __init__(self, path: Path) -> None:
        """Connect; raises RetryableError with a hint if no agent responds."""
        self.path = path
        self._connection = Connection(
            path,
            no_agent="no agent is running here in standalone mode",
            hint="start one with `dra-agent run --standalone`, or name its directory with --state-dir",
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def claims(
        self, *, allocated: bool = False, whole: bool = True, timeout_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Request every claim, oldest first, page by page; `timeout_s` is for each page. See `ListPage`."""
        after: int | None = 0
        while after is not None:
            try:
                limit = MAX_PAGE_CLAIMS if whole else MAX_BRIEF_PAGE_CLAIMS
                page = self.call(ListPage(after, limit, allocated, whole), timeout_s=timeout_s)
            except UsageError:
                # An agent of an earlier version, which is not restarted yet, has only the request for all claims.
                views = self.call(ListClaims(), timeout_s=timeout_s)
                yield from (view for view in views if not allocated or allocation_of(view["claim"]))
                return
            yield from page["claims"]
            after = page["next"]

    def apply(
        self, objects: list[dict[str, Any]], *, whole: bool = True, timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Apply objects; returns a result for each. `whole`: see `Apply`."""
        results: list[dict[str, Any]]
        try:
            results = self.call(Apply(objects, whole), timeout_s=timeout_s)
        except UsageError:
            if whole:
                raise
            # An agent of an earlier version, which has done nothing.
            results = self.call(Apply(objects), timeout_s=timeout_s)
        return results

    def call(self, request: Request, *, timeout_s: float | None = None) -> Any:
        """Send one request and return its result within `timeout_s` seconds; raises the error that the agent raised."""
        timeout = RESPONSE_TIMEOUT_S + getattr(request, "wait", 0.0) if timeout_s is None else timeout_s
        hint = "`dra-agent claim list` shows what it has done" if isinstance(request, Apply | Delete) else None
        return self._connection.call(request, timeout=timeout, line_limit=MAX_LINE_BYTES, timeout_hint=hint)
