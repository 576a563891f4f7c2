"""A small API client for tests, based on the standard library.

It shares no code with the agent's own client, so a bug of one client is visible to the other.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from .process import LONG_TIMEOUT_S, until

Object = dict[str, Any]
QUIET_WRITE_S = 0.05
"""Seconds within which the API server completes a write on an idle machine: etcd syncs its log."""

WATCH_S = 3600
"""Seconds after which the server ends a watch: longer than any scenario."""
RESPONSE_TIMEOUT_S = 120.0
"""Seconds within which the API server responds on any machine: its own request timeout is 60."""


@dataclass(frozen=True)
class Kind:
    """A resource: `Kind("resource.k8s.io/v1", "resourceclaims")`."""

    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None, subresource: str | None) -> str:
        """Return the URL path."""
        parts = ["api" if self.version == "v1" else "apis", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, *(quote(part) for part in (name, subresource) if part is not None)]
        return "/" + "/".join(parts)


NODES = Kind("v1", "nodes", namespaced=False)
NAMESPACES = Kind("v1", "namespaces", namespaced=False)
PODS = Kind("v1", "pods")
EVENTS = Kind("v1", "events")
SERVICE_ACCOUNTS = Kind("v1", "serviceaccounts")
RESOURCE_QUOTAS = Kind("v1", "resourcequotas")
JOBS = Kind("batch/v1", "jobs")
DEPLOYMENTS = Kind("apps/v1", "deployments")
STATEFUL_SETS = Kind("apps/v1", "statefulsets")
DAEMON_SETS = Kind("apps/v1", "daemonsets")
SLICES = Kind("resource.k8s.io/v1", "resourceslices", namespaced=False)
CLASSES = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
TAINT_RULES = Kind("resource.k8s.io/v1", "devicetaintrules", namespaced=False)
CLAIMS = Kind("resource.k8s.io/v1", "resourceclaims")
TEMPLATES = Kind("resource.k8s.io/v1", "resourceclaimtemplates")
CLUSTER_ROLES = Kind("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", namespaced=False)


class ApiStatusError(Exception):
    """The API server returned an error: `code` 404, `reason` "NotFound", and its message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


class TransientApiError(ApiStatusError, LookupError):
    """A retry can succeed: the object is not found yet, a conflict, a server that is busy or not ready."""


TRANSIENT_STATUSES = (404, 409, 429, 500, 503, 504)


@dataclass(frozen=True)
class Api:
    """A client of the API server with one identity. Thread-safe."""

    host: str
    port: int
    authority: Path
    token: str
    impersonate: tuple[tuple[str, str], ...] = ()

    def as_user(self, token: str) -> Api:
        """Return a client of the same server with another token."""
        return replace(self, token=token, impersonate=())

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Return one object; ApiStatusError 404 if it does not exist."""
        return self.call("GET", kind.path(namespace, name, None))

    def find(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return one object, or None."""
        try:
            return self.get(kind, name, namespace)
        except ApiStatusError as error:
            if error.code == 404:
                return None
            raise

    def list(
        self, kind: Kind, namespace: str | None = None, *, fields: Mapping[str, str] | None = None, labels: str = ""
    ) -> list[Object]:
        """Return every object, of all namespaces if none is given; `fields` as {"spec.driver": "..."}."""
        return list(self._get_list(kind, namespace, fields, labels)["items"])

    def create(self, kind: Kind, body: Object, namespace: str | None = None, *, subresource: str = "") -> Object:
        """Create an object; apiVersion is added. With `subresource`: POST to that of the object named in `body`."""
        name = body["metadata"]["name"] if subresource else None
        body = {"apiVersion": kind.version, **body}
        return self.call("POST", kind.path(namespace, name, subresource or None), body)

    def replace(self, kind: Kind, body: Object, *, subresource: str | None = None) -> Object:
        """PUT a changed object."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], subresource)
        return self.call("PUT", path, {"apiVersion": kind.version, **body})

    def patch(
        self, kind: Kind, name: str, body: Any, namespace: str | None = None, *, subresource: str | None = None
    ) -> Object:
        """Apply a merge patch; a list is a JSON patch."""
        media_type = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        return self.call("PATCH", kind.path(namespace, name, subresource), body, media_type=media_type)

    def delete(self, kind: Kind, name: str, namespace: str | None = None, *, grace: int | None = None) -> None:
        """Delete an object if it exists. `grace` 0 removes a pod from the API server at once."""
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self.call("DELETE", kind.path(namespace, name, None), options)
        except ApiStatusError as error:
            if error.code != 404:
                raise

    def watch(
        self,
        kind: Kind,
        *,
        fields: Mapping[str, str] | None = None,
        begun: Callable[[Callable[[], None]], None],
        seconds: int = WATCH_S,
    ) -> Iterator[tuple[str, Object]]:
        """Yield events from the call of `begun` on: ("ADDED", object), ...

        Ends when the server ends it, after that many seconds, or when the function passed to `begun` is called.
        """
        version = self._get_list(kind, None, fields, "")["metadata"]["resourceVersion"]
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        if fields:
            query["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
        connection = self._connect(seconds + 10)
        try:
            connection.request("GET", f"{kind.path(None, None, None)}?{urlencode(query)}", headers=self._headers())
            connection_socket = connection.sock  # http.client drops it for "Connection: close"
            response = connection.getresponse()
            begun(functools.partial(_shut_down, connection_socket))
            while line := response.readline():
                event = json.loads(line)
                yield event["type"], event["object"]
        except (OSError, ValueError, http.client.HTTPException):
            return  # the server stopped, or the watch was canceled: the last event may be truncated
        finally:
            connection.close()

    def log(self, pod: str, namespace: str, container: str | None = None, *, previous: bool = False) -> str:
        """Return the output of a container, fetched from its kubelet."""
        query = {"previous": str(previous).lower()} | ({"container": container} if container else {})
        return self.text("GET", f"{PODS.path(namespace, pod, 'log')}?{urlencode(query)}")

    def call(self, method: str, path: str, body: Any = None, *, media_type: str = "application/json") -> Object:
        """Send one JSON request."""
        response: Object = json.loads(self.text(method, path, body, media_type=media_type))
        return response

    def text(self, method: str, path: str, body: Any = None, *, media_type: str = "application/json") -> str:
        """Send one request; return the response body. ApiStatusError for an error, OSError without a response."""
        payload = None if body is None else json.dumps(body)
        headers = self._headers() | ({"Content-Type": media_type} if payload else {})
        # One connection per request: no reused connection can be closed by a restarted server.
        connection = self._connect(RESPONSE_TIMEOUT_S)
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            content = response.read().decode()
        except (http.client.HTTPException, OSError) as error:
            raise OSError(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise _status_error(response.status, content)
        return content

    def _get_list(self, kind: Kind, namespace: str | None, fields: Mapping[str, str] | None, labels: str) -> Object:
        query = {}
        if fields:
            query["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
        if labels:
            query["labelSelector"] = labels
        return self.call("GET", kind.path(namespace, None, None) + (f"?{urlencode(query)}" if query else ""))

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        context = _tls_context(self.authority.read_text())
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **dict(self.impersonate)}

    def slowdown(self) -> float:
        """Return how many times longer a write takes now than on an idle machine: 1 or more.

        Multiply a bound in seconds for an idle machine by it.
        """
        durations = []
        for number in range(7):
            started = time.monotonic()
            self.patch(NAMESPACES, "default", {"metadata": {"annotations": {"pace": str(number)}}})
            durations.append(time.monotonic() - started)
        return max(1.0, statistics.median(durations) / QUIET_WRITE_S)

    def wait(
        self, condition: Callable[[], object], what: str, timeout_s: float = LONG_TIMEOUT_S, *, every: float = 0.05
    ) -> float:
        """Wait until the condition holds. Returns seconds.

        An object that does not exist yet (404), or lacks the requested field, counts as not yet.
        """
        return until(condition, what, timeout_s, every=every)


def _shut_down(connection_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not as an SSLSocket: that would remove the TLS state which the reading thread uses.
        socket.socket.shutdown(connection_socket, socket.SHUT_RDWR)


@functools.cache
def _tls_context(authority: str) -> ssl.SSLContext:
    # Cached by content: the next cluster of this process can have the same path with another authority.
    return ssl.create_default_context(cadata=authority)


def _status_error(code: int, content: str) -> ApiStatusError:
    try:
        status = json.loads(content)
        reason, message = status.get("reason", ""), status.get("message", "")
    except ValueError:
        reason, message = "", content[:500]
    return (TransientApiError if code in TRANSIENT_STATUSES else ApiStatusError)(code, reason, message)
