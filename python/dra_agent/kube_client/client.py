"""The API server as the rest of the agent knows it. Objects are plain JSON values: unknown fields survive."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from dra_agent.api_object import Object
from dra_agent.kube_client.config import load_client_config
from dra_agent.kube_client.credentials import Credentials
from dra_agent.kube_client.errors import GoneError, InvalidObjectError, UnavailableError, error_for_status
from dra_agent.kube_client.http import HttpTransport, Request
from dra_agent.kube_client.kinds import Kind
from dra_agent.kube_client.response import Event, Page, bounded, decode_event, decode_page

log = logging.getLogger(__name__)

PAGE_ITEMS = 500
"""Objects per page of a list, as in kubectl."""
LIST_TIMEOUT_S = 60.0
WATCH_TIMEOUT_S = (1800, 3600)
"""Seconds that one request of a watch lasts, at random between them, as kube-apiserver itself selects without a timeout
(--min-request-timeout). TCP keepalives detect a server that has vanished."""
WATCH_GRACE_S = 30.0
"""Seconds after its end at which a watch that did not end is closed."""
MAX_EMPTY_WATCHES = 3
"""Consecutive watches that may end at once without an event; more indicate a proxy instead of an API server."""
_APPLY = "application/apply-patch+yaml"


class ObjectList(NamedTuple):
    """Objects, and the version of the list from which a watch continues."""

    items: list[Object]
    resource_version: str
    notes: Sequence[str] = ()
    """Objects that `items` lacks because they cannot be read, and parts that are not read; of many the first."""


class WatchEvent(NamedTuple):
    """A change: ADDED, MODIFIED or DELETED, and the object after it (before it, where it is deleted)."""

    type: str
    object: Object


class WatchCursor:
    """Position of a watch. The caller keeps it to resume a broken watch without a list."""

    def __init__(self, resource_version: str) -> None:
        self.resource_version = resource_version


class ApiClient:
    """Reads and writes objects. Every call raises one of the errors of `kube_client.errors`, and only those."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    @property
    def address(self) -> str:
        """https://host:port."""
        return self._http.server

    @property
    def requests(self) -> Mapping[str, int]:
        """How many requests were sent, by HTTP method."""
        return self._http.requests

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; running requests fail with UnavailableError."""
        self._http.close()

    async def get(self, kind: Kind, name: str, namespace: str | None = None, *, timeout: float | None = None) -> Object:
        """Read one object. `timeout` is in seconds, for the whole of it."""
        return await self._http.json(Request("GET", kind.path(namespace, name)), timeout=timeout)

    def get_on_thread(self, kind: Kind, name: str, namespace: str | None = None, *, timeout: float) -> Object | None:
        """Read one object on the calling thread, with the errors of `get`; None if `get` is to be used, for any reason.

        Cheaper than `get`, which has the retries and renews credentials. `timeout` is in seconds, for the whole of it.
        """
        return self._http.json_on_thread(Request("GET", kind.path(namespace, name)), timeout=timeout)

    async def get_text(self, path: str, *, timeout: float, max_bytes: int) -> str:
        """Read text that another server returns: through a proxy of the API server, or at the address of this client.

        `path` is that of the URL, `timeout` is in seconds, for the whole of it. The caller bounds how many run at once.
        """
        return await self._http.text(Request("GET", path), timeout=timeout, max_bytes=max_bytes)

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        fields: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        max_items: int | None = None,
    ) -> ObjectList:
        """Read all objects that the selectors choose, page by page; in all namespaces where none is named.

        More than `max_items` are an InvalidObjectError, and no further page is read. An object that cannot be read is
        in the notes only.
        """
        params = {**_selectors(fields, labels), "limit": str(PAGE_ITEMS)}
        items: list[Object] = []
        notes: list[str] = []
        while True:
            try:
                request = Request("GET", kind.path(namespace), params)
                page = self._page(await self._http.body(request, timeout=LIST_TIMEOUT_S), kind, request)
            except GoneError:
                if "continue" not in params:
                    raise
                # The pages' version is too old by now: list again, without pages.
                items.clear()
                notes.clear()
                params = _selectors(fields, labels)
                continue
            # Items of a list have no kind and apiVersion.
            items += (_typed(kind, item) for item in page.items)
            notes += page.notes
            if max_items is not None and len(items) > max_items:
                where = f"API server {self.address}: list {request.path}"
                raise InvalidObjectError(f"there are more than {max_items} objects", where=where)
            if not page.next_page:
                return ObjectList(items, page.resource_version, bounded(notes, kind.kind))
            params["continue"] = page.next_page

    async def watch(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        fields: Mapping[str, str] | None = None,
        resource_version: str | WatchCursor,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent]:
        """Yield every change after `resource_version`, without end.

        The server ends a watch from time to time; it is resumed without a gap. Raises GoneError if that is
        too long ago (list again then); UnavailableError where the connection breaks. A WatchCursor is advanced, so
        that another watch can continue after such an error. `opened` is called when the server has accepted the watch.
        An object that cannot be read is logged, and counts as deleted: a list does not have it either.
        """
        empty = 0
        cursor = resource_version if isinstance(resource_version, WatchCursor) else WatchCursor(resource_version)
        while True:
            began, came = time.monotonic(), False
            seconds = random.randint(*WATCH_TIMEOUT_S)  # noqa: S311  # spreads load, guards nothing
            params = {
                **_selectors(fields, None),
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": cursor.resource_version,
                "timeoutSeconds": str(seconds),
            }
            request = Request("GET", kind.path(namespace), params)
            async with self._http.stream(request, idle_timeout_s=seconds + WATCH_GRACE_S) as lines:
                opened()
                async for line in lines:
                    came = True
                    event = self._event(line, request)
                    metadata = event.object.get("metadata")
                    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
                    if isinstance(version, str) and version:
                        cursor.resource_version = version
                    if event.problem:
                        log.warning("an object cannot be read, and counts as deleted", extra={"reason": event.problem})
                        yield WatchEvent("DELETED", _typed(kind, event.object))
                    elif event.type != "BOOKMARK":
                        yield WatchEvent(event.type, event.object)
            empty = 0 if came or time.monotonic() - began >= 1.0 else empty + 1
            if empty == MAX_EMPTY_WATCHES:
                raise UnavailableError(
                    "watches end as soon as they start", where=f"API server {self.address}: watch {request.path}"
                )

    def _page(self, text: bytes, kind: Kind, request: Request) -> Page:
        where = f"API server {self.address}: list {request.path}"
        try:
            return decode_page(text, kind.kind)
        except msgspec.DecodeError as error:
            raise UnavailableError(f"the response is not a list: {error}", where=where) from error

    def _event(self, line: bytes, request: Request) -> Event:
        where = f"API server {self.address}: watch {request.path}"
        try:
            event = decode_event(line)
        except msgspec.DecodeError as error:
            raise UnavailableError(f"the watch returned an unknown message: {error}", where=where) from error
        if event.type == "ERROR":
            status = event.object.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR
            raise error_for_status(status, str(event.object.get("message") or "the watch failed"), where=where)
        return event

    async def create(
        self,
        kind: Kind,
        object: Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Create an object; return it as it is stored. ConflictError if it exists already.

        With `subresource` it is posted to that subresource of the object with its name. With
        `dry_run` it is validated and not stored.
        """
        namespace = namespace or object.get("metadata", {}).get("namespace")
        if subresource is not None:
            path = kind.path(namespace, object["metadata"]["name"], subresource)
            return await self._http.json(Request("POST", path, _dry(dry_run), object))
        return await self._http.json(Request("POST", kind.path(namespace), _dry(dry_run), _typed(kind, object)))

    async def replace(self, kind: Kind, object: Object, *, dry_run: bool = False) -> Object:
        """Replace an object; ConflictError where its resourceVersion is not the newest."""
        metadata = object["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self._http.json(Request("PUT", path, _dry(dry_run), _typed(kind, object)))

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace: int | None = None,
    ) -> None:
        """Delete an object; ConflictError where it is not the one of this uid and resourceVersion any more.

        `grace` is in seconds, for a pod; None: the pod's own.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions := {key: value for key, value in conditions.items() if value is not None}:
            options["preconditions"] = preconditions
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self._http.json(Request("DELETE", kind.path(namespace, name), body=options))

    async def apply(
        self,
        kind: Kind,
        name: str,
        body: Object,
        namespace: str | None = None,
        *,
        field_manager: str,
        subresource: str | None = None,
        force: bool = True,
    ) -> Object:
        """Apply the fields in `body` on the server's side (server-side apply) as `field_manager`."""
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        path = kind.path(namespace, name, subresource)
        return await self._http.json(Request("PATCH", path, params, _typed(kind, body), _APPLY))


def connect(kubeconfig: Path | None = None, *, context: str | None = None) -> ApiClient:
    """Use a context of the kubeconfig (by default its current one), or else the pod's service account, or $KUBECONFIG.

    Nothing is sent yet.

    Raises UsageError if none can be used, UnavailableError if a referenced file does not exist (yet).
    """
    return ApiClient(HttpTransport(Credentials(lambda: load_client_config(kubeconfig, context=context))))


def _typed(kind: Kind, document: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **document}


def _dry(run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if run else {}


def _selectors(fields: Mapping[str, str] | None, labels: Mapping[str, str] | None) -> dict[str, str]:
    selectors = {"fieldSelector": fields, "labelSelector": labels}
    return {
        name: ",".join(f"{key}={value}" for key, value in chosen.items())
        for name, chosen in selectors.items()
        if chosen
    }
