"""The /metrics of agents for `dra-agent top`: which there are in a cluster, and their telemetry, read with bounds.

Agents are pods of DaemonSets in namespaces that the user names: who creates pods can give them the labels of an agent.

By default the API server forwards each request to the agent's pod, so only the API server has to be reachable. It
accepts the certificate of any pod, and it removes the Authorization header of the request: a token for /metrics does
not arrive there (k8s.io/apiserver/pkg/endpoints/filters/authentication.go). Endpoints with a token are read directly.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from dra_agent.api_object import Object
from dra_agent.errors import AgentError, UsageError

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient
    from dra_agent.telemetry.exposition import ExposedValues

MAX_BYTES = 8 << 20
"""Bytes of one response. An agent with 64 claims writes less than 1 MiB."""
ENDPOINT_TIMEOUT_S = 5.0
"""Seconds for one endpoint."""
READ_TIMEOUT_S = 45.0
"""Seconds for all: endpoints that were not read by then are named."""
MAX_CONCURRENCY = 16
"""Endpoints that are read at once."""
MAX_NAMED_PODS = 3
"""Pods that are named in one note."""
NAME_LABEL = "app.kubernetes.io/name"
AGENT_NAMES = ("dra-agent", "dra-agent-pool")
"""Values of the label: agents of the chart without and with pools, and of the manifests."""
_PORT = "metrics"
_TLS, _TOKEN = "DRA_AGENT_METRICS_TLS_CERT", "DRA_AGENT_METRICS_TOKEN_FILE"
_NODE, _DRIVER = "DRA_AGENT_NODE_NAME", "DRA_AGENT_DRIVER_NAME"
_ENDED = ("Succeeded", "Failed")


class Endpoint(NamedTuple):
    """The /metrics of one agent."""

    node: str
    """The node of its pod; of a given URL its host and port, or the given name."""
    shown: str
    """The pod as NAMESPACE/NAME, or the URL."""
    path: str
    """In the proxy of the API server; for a direct connection its path."""
    server: str | None = None
    """scheme://host:port of a direct connection."""
    driver: str = ""
    """Empty: not known."""
    problem: str = ""
    """Why it cannot be read."""
    is_pod: bool = False
    """It was found through the API server, which knows its node."""


class Found(NamedTuple):
    """The endpoints of a cluster."""

    endpoints: list[Endpoint]
    """By node."""
    ignored: list[str]
    """Pods, as NAMESPACE/NAME, that have the labels and no DaemonSet."""
    notes: list[str]
    """Pods that cannot be read."""


class Reading(NamedTuple):
    """What an endpoint returned."""

    endpoint: Endpoint
    values: ExposedValues | None
    problem: str = ""
    """Why there are no values."""


class DirectAccess(msgspec.Struct, frozen=True):
    """How direct connections are made."""

    authority: Path | None = None
    """The trusted CA certificates; None: those of the host."""
    server_name: str | None = None
    """The name in the certificates; None: that of the address."""
    token: str | None = None


def given_endpoint(text: str, access: DirectAccess) -> Endpoint:
    """Return the endpoint of [NODE=]URL. Raises UsageError if it is not one, or would send a token without TLS."""
    before, _, after = text.partition("=")
    node, url = (before, after) if after and "/" not in before else ("", text)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"not a URL: {error}", where=f"--endpoint {text}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise UsageError(
            "not the URL of an agent's metrics",
            where=f"--endpoint {text}",
            hint="for example https://node-1:9417/metrics",
        )
    endpoint = Endpoint(
        node or f"{parts.hostname}{f':{port}' if port else ''}",
        url,
        parts.path if parts.path not in ("", "/") else "/metrics",
        f"{parts.scheme}://{parts.netloc}",
    )
    if access.token and not _is_safe(endpoint):
        raise UsageError(
            "the token would be sent unencrypted",
            where=f"--endpoint {text}",
            hint="use https://, or leave out the token",
        )
    return endpoint


def _is_safe(endpoint: Endpoint) -> bool:
    """Return whether a token sent there cannot be read by others on the network."""
    parts = urlsplit(endpoint.server or "https:")
    try:
        is_loopback = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        is_loopback = parts.hostname == "localhost"
    return parts.scheme == "https" or is_loopback


async def find_endpoints(
    api: ApiClient, namespaces: Sequence[str], node: str | None, *, direct: bool, access: DirectAccess
) -> Found:
    """Return the endpoints of the agents' pods in these namespaces. Raises the errors of the API server."""
    from dra_agent.kube_client import PODS

    fields = {} if node is None else {"spec.nodeName": node}
    lists = await asyncio.gather(
        *(
            api.list(PODS, namespace=namespace, fields=fields, labels={NAME_LABEL: name})
            for namespace in dict.fromkeys(namespaces)
            for name in AGENT_NAMES
        )
    )
    found = Found([], [], [note for pods in lists for note in pods.notes])
    for pod in (pod for pods in lists for pod in pods.items):
        endpoint = _endpoint(pod, direct=direct, access=access)
        if endpoint is None:
            continue
        if _is_of_daemon_set(pod):
            found.endpoints.append(endpoint)
        else:
            found.ignored.append(endpoint.shown)
    found.endpoints.sort()
    return found


def _is_of_daemon_set(pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(
        owner.get("controller") is True
        and owner.get("kind") == "DaemonSet"
        and str(owner.get("apiVersion")).partition("/")[0] == "apps"
        for owner in owners
    )


def ignored_note(ignored: Sequence[str]) -> list[str]:
    """Return the note about pods that are not read, if there are any."""
    if not ignored:
        return []
    names = ", ".join(sorted(ignored)[:MAX_NAMED_PODS]) + (", ..." if len(ignored) > MAX_NAMED_PODS else "")
    return [f"not read, because no DaemonSet controls them: pods with the labels of agents: {names}"]


def _endpoint(pod: Object, *, direct: bool, access: DirectAccess) -> Endpoint | None:
    """Return the endpoint of a pod; None for a pod that is not a running agent."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    absent: tuple[Object, Any] = ({}, None)
    container, port = next(
        (
            (container, port["containerPort"])
            for container in spec.get("containers") or ()
            for port in container.get("ports") or ()
            if port.get("name") == _PORT
        ),
        absent,
    )
    variables = {variable.get("name"): str(variable.get("value") or "") for variable in container.get("env") or ()}
    if _NODE not in variables or not spec.get("nodeName") or status.get("phase") in _ENDED:
        return None
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    node, shown, driver = str(spec["nodeName"]), f"{namespace}/{name}", variables.get(_DRIVER, "")
    scheme = "https" if _TLS in variables else "http"
    if not direct:
        proxied = (
            f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{scheme}:{quote(name, safe='')}:{port}/proxy/metrics"
        )
        problem = (
            "its /metrics requires a token, which the API server does not forward: use --direct"
            if _TOKEN in variables
            else ""
        )
        return Endpoint(node, shown, proxied, driver=driver, problem=problem, is_pod=True)
    address = str(status.get("podIP") or "")
    if not address:
        return Endpoint(node, shown, "", driver=driver, problem="the pod has no address", is_pod=True)
    server = f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"
    endpoint = Endpoint(node, shown, "/metrics", server, driver, is_pod=True)
    if access.token and not _is_safe(endpoint):
        return endpoint._replace(problem="the token would be sent unencrypted: the agent has no TLS")
    return endpoint


async def read_endpoints(api: ApiClient | None, endpoints: Sequence[Endpoint], access: DirectAccess) -> list[Reading]:
    """Read every endpoint, a few at once; one without values has the reason. `api` is not needed for direct ones."""
    from dra_agent.telemetry.exposition import parse

    slots = asyncio.Semaphore(MAX_CONCURRENCY)
    loop = asyncio.get_running_loop()
    end = loop.time() + READ_TIMEOUT_S

    async def read(endpoint: Endpoint) -> Reading:
        if endpoint.problem:
            return Reading(endpoint, None, endpoint.problem)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(slots)
            remaining_s = end - loop.time()
            if remaining_s <= 0:
                return Reading(endpoint, None, f"not read within {READ_TIMEOUT_S:g} s")
            try:
                client = api
                if endpoint.server is not None:
                    client = await stack.enter_async_context(_direct(endpoint.server, access))
                assert client is not None
                text = await client.get_text(
                    endpoint.path, timeout=min(ENDPOINT_TIMEOUT_S, remaining_s), max_bytes=MAX_BYTES
                )
                return Reading(endpoint, parse(text))
            except AgentError as error:
                return Reading(endpoint, None, error.message)
            except ValueError as error:
                return Reading(endpoint, None, f"not the metrics of an agent: {error}")

    return list(await asyncio.gather(*map(read, endpoints)))


def _direct(server: str, access: DirectAccess) -> ApiClient:
    from dra_agent.kube_client import ApiClient
    from dra_agent.kube_client.config import ClientConfig, Pem
    from dra_agent.kube_client.credentials import Credentials
    from dra_agent.kube_client.http import HttpTransport

    config = ClientConfig(
        server=server,
        source=server,
        authority=None if access.authority is None else Pem(path=access.authority),
        server_name=access.server_name,
        token=access.token,
    )
    return ApiClient(HttpTransport(Credentials(lambda: config)))
