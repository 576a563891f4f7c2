"""A server of the page with given views, and requests to it."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from urllib.parse import urlsplit

import pytest

from dra_cluster.page.last_known import LastKnown
from dra_cluster.page.server import PageServer
from dra_cluster.page.site import Site
from dra_cluster.page.views import ClusterView, HostView

REQUEST_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Response:
    status: int
    headers: Message
    text: str


def request(
    url: str, *, method: str = "GET", path: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Send one request; `path` is sent as it is, and replaces that of the URL."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "") if path is None else path
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.putrequest(method, target, skip_host=headers is not None and "Host" in headers)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read().decode())
    finally:
        connection.close()


Serve = Callable[..., PageServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[PageServer] = []

    def start(host: HostView, cluster: ClusterView | None = None) -> PageServer:
        site = Site(
            LastKnown(lambda: host, interval_s=0),
            None if cluster is None else LastKnown(lambda: cluster, interval_s=0),
        )
        servers.append(PageServer(site, 0))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.close()
