"""A small client of the API server for tests, on the standard library alone.

It shares nothing with the agent's own client, so that what one of them gets wrong the other one shows.
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

from .process import LONG, until

Object = dict[str, Any]
QUIET_WRITE_S = 0.05
"""Seconds within which the API server takes a write on a machine with little else to do: etcd syncs its log."""

WATCH_S = 3600
"""Seconds after which a watch ends that nobody has ended: more than a scenario may take."""
ANSWER_S = 120.0
"""Seconds within which the API server answers on any machine: it gives up itself after 60."""


@dataclass(frozen=True)
class Kind:
    """A resource: `Kind("resource.k8s.io/v1", "resourceclaims")`."""

    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None, subresource: str | None) -> str:
        """Its URL path."""
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


class RefusedError(Exception):
    """The API server answered with an error: `code` 404, `reason` "NotFound", and its message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


class NotNowError(RefusedError, LookupError):
    """The answer can be another one soon: nothing of that name yet, a conflict, a server that is busy or not ready."""


NOT_NOW = (404, 409, 429, 500, 503, 504)


@dataclass(frozen=True)
class Api:
    """Somebody's way to the API server. Safe to use from several threads."""

    host: str
    port: int
    authority: Path
    token: str
    impersonate: tuple[tuple[str, str], ...] = ()

    def as_user(self, token: str) -> Api:
        """The same server with another token."""
        return replace(self, token=token, impersonate=())

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """One object; RefusedError 404 where there is none."""
        return self.call("GET", kind.path(namespace, name, None))

    def find(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None."""
        try:
            return self.get(kind, name, namespace)
        except RefusedError as refused:
            if refused.code == 404:
                return None
            raise

    def list(
        self, kind: Kind, namespace: str | None = None, *, fields: Mapping[str, str] | None = None, labels: str = ""
    ) -> list[Object]:
        """Every object, of all namespaces where none is named; `fields` as {"spec.driver": "..."}."""
        return list(self._listed(kind, namespace, fields, labels)["items"])

    def create(self, kind: Kind, body: Object, namespace: str | None = None, *, subresource: str = "") -> Object:
        """Create; apiVersion is filled in. With `subresource`: POST to that of the object named in the metadata."""
        name = body["metadata"]["name"] if subresource else None
        body = {"apiVersion": kind.version, **body}
        return self.call("POST", kind.path(namespace, name, subresource or None), body)

    def replace(self, kind: Kind, body: Object, *, subresource: str | None = None) -> Object:
        """PUT the object that was read and changed."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], subresource)
        return self.call("PUT", path, {"apiVersion": kind.version, **body})

    def patch(
        self, kind: Kind, name: str, body: Any, namespace: str | None = None, *, subresource: str | None = None
    ) -> Object:
        """A merge patch; a list is a JSON patch."""
        media_type = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        return self.call("PATCH", kind.path(namespace, name, subresource), body, media_type=media_type)

    def delete(self, kind: Kind, name: str, namespace: str | None = None, *, grace: int | None = None) -> None:
        """Delete; one that is gone already is deleted. `grace` 0 forces a pod out of the API server at once."""
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self.call("DELETE", kind.path(namespace, name, None), options)
        except RefusedError as refused:
            if refused.code != 404:
                raise

    def watch(
        self,
        kind: Kind,
        *,
        fields: Mapping[str, str] | None = None,
        begun: Callable[[Callable[[], None]], None],
        seconds: int = WATCH_S,
    ) -> Iterator[tuple[str, Object]]:
        """What happens from the call of `begun` on: ("ADDED", object), ...

        Ends when the server ends, after that many seconds, or when somebody calls what `begun` is given.
        """
        version = self._listed(kind, None, fields, "")["metadata"]["resourceVersion"]
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        if fields:
            query["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
        connection = self._connect(seconds + 10)
        try:
            connection.request("GET", f"{kind.path(None, None, None)}?{urlencode(query)}", headers=self._headers())
            held = connection.sock  # the connection forgets it when the server says that it will close
            answer = connection.getresponse()
            begun(functools.partial(_hang_up, held))
            while line := answer.readline():
                event = json.loads(line)
                yield event["type"], event["object"]
        except (OSError, ValueError, http.client.HTTPException):
            return  # the server was stopped, or nobody wants more: what was on its way may be cut
        finally:
            connection.close()

    def log(self, pod: str, namespace: str, container: str | None = None, *, previous: bool = False) -> str:
        """What a container printed, fetched from its kubelet."""
        query = {"previous": str(previous).lower()} | ({"container": container} if container else {})
        return self.text("GET", f"{PODS.path(namespace, pod, 'log')}?{urlencode(query)}")

    def call(self, method: str, path: str, body: Any = None, *, media_type: str = "application/json") -> Object:
        """One request of JSON."""
        answer: Object = json.loads(self.text(method, path, body, media_type=media_type))
        return answer

    def text(self, method: str, path: str, body: Any = None, *, media_type: str = "application/json") -> str:
        """One request; the body of the answer. RefusedError where it is an error, OSError where there is no answer."""
        payload = None if body is None else json.dumps(body)
        headers = self._headers() | ({"Content-Type": media_type} if payload else {})
        # A connection per request: none is left over that a restarted server has closed.
        connection = self._connect(ANSWER_S)
        try:
            connection.request(method, path, payload, headers)
            answer = connection.getresponse()
            content = answer.read().decode()
        except (http.client.HTTPException, OSError) as error:
            raise OSError(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise _refused(answer.status, content)
        return content

    def _listed(self, kind: Kind, namespace: str | None, fields: Mapping[str, str] | None, labels: str) -> Object:
        query = {}
        if fields:
            query["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
        if labels:
            query["labelSelector"] = labels
        return self.call("GET", kind.path(namespace, None, None) + (f"?{urlencode(query)}" if query else ""))

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        context = _trusting(self.authority.read_text())
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **dict(self.impersonate)}

    def pace(self) -> float:
        """How many times as long as on a quiet machine a write takes now: 1 or more.

        A bound in seconds that is meant for a quiet machine is multiplied by it.
        """
        took = []
        for number in range(7):
            began = time.monotonic()
            self.patch(NAMESPACES, "default", {"metadata": {"annotations": {"pace": str(number)}}})
            took.append(time.monotonic() - began)
        return max(1.0, statistics.median(took) / QUIET_WRITE_S)

    def wait(self, condition: Callable[[], object], what: str, at_most: float = LONG, *, every: float = 0.05) -> float:
        """Wait until the condition holds. Returns seconds.

        An object that is not there yet (404), or has not the field that is asked for, counts as not yet.
        """
        return until(condition, what, at_most, every=every)


def _hang_up(held: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not as an SSLSocket, which would take from the thread that reads what it reads with.
        socket.socket.shutdown(held, socket.SHUT_RDWR)


@functools.cache
def _trusting(authority: str) -> ssl.SSLContext:
    # By what is in the file: the next cluster of this process may have the same path, and has another authority.
    return ssl.create_default_context(cadata=authority)


def _refused(code: int, content: str) -> RefusedError:
    try:
        status = json.loads(content)
        reason, message = status.get("reason", ""), status.get("message", "")
    except ValueError:
        reason, message = "", content[:500]
    return (NotNowError if code in NOT_NOW else RefusedError)(code, reason, message)
