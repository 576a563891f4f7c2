"""Requests that the page refuses: other sites, other users of the host, other methods, other files, hostile names."""

from __future__ import annotations

import socket
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dra_agent.bounded_http import MAX_PER_ADDRESS
from dra_cluster.page.server import PageServer
from dra_cluster.page.views import ClusterView, DeviceView, HostView, NodeView, PendingView, ReclaimView, ReleaseView

from .conftest import REQUEST_TIMEOUT_S, Serve, request

EVIL = "\"><script>alert(1)</script>&amp;'\x1b[31m\u202egpj\u2066\r\nX-Evil: 1"
PATHS = ("", "cluster", "topology.svg", "page.css", "page.js")


@pytest.fixture
def server(serve: Serve) -> PageServer:
    return serve(HostView(name="node-a", agent="Agent", picture="<svg/>"), ClusterView())


def test_the_page_is_on_the_loopback_address_only(server: PageServer) -> None:
    assert urlsplit(server.url).hostname == "127.0.0.1"
    port = urlsplit(server.url).port
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in table if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
    assert [address.split(":")[0] for address in listening] == ["0100007F"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.2", "localhost.", "localhost@evil.example",
     "[::1]evil", "", "127.0.0.1:9419, evil.example"],
)  # fmt: skip
def test_a_page_of_another_host_name_is_refused(server: PageServer, host: str) -> None:
    response = request(server.url, headers={"Host": host})
    assert response.status == 421
    assert "node-a" not in response.text and "evil" not in response.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:9419"])
def test_names_of_the_loopback_address_are_accepted(server: PageServer, host: str) -> None:
    assert request(server.url, headers={"Host": host}).status == 200


def test_a_request_without_or_with_two_host_headers_is_refused(server: PageServer) -> None:
    parts = urlsplit(server.url)
    for headers in ("", "Host: localhost\r\nHost: localhost\r\n"):
        with socket.create_connection((parts.hostname, parts.port), timeout=REQUEST_TIMEOUT_S) as connection:
            connection.sendall(f"GET {parts.path} HTTP/1.1\r\n{headers}\r\n".encode())
            assert connection.makefile("rb").readline().split()[1] == b"421"


def test_another_user_of_the_host_does_not_know_the_path(server: PageServer, serve: Serve) -> None:
    other = serve(HostView(name="node-a", agent=None))
    secret = urlsplit(server.url).path.strip("/")
    assert len(secret) >= 20 and secret != urlsplit(other.url).path.strip("/")
    for path in ("/", "", "//", "/page.js", f"/{secret}", f"/{secret[:-1]}/", f"/{secret}x/", f"//{secret}/x"):
        response = request(server.url, path=path or "/")
        assert response.status == 404, path
        assert "node-a" not in response.text


def test_a_path_of_other_characters_is_refused(server: PageServer) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=REQUEST_TIMEOUT_S) as connection:
        connection.sendall(b"GET /\xff\xc3\xa9/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"404"


@pytest.mark.parametrize(
    "name",
    ["../views.py", "..%2fviews.py", "page.css/", "./page.css", "views.py", "%70age.css", "page.css%00", "CLUSTER"],
)
def test_no_file_outside_the_table_is_served(server: PageServer, name: str) -> None:
    assert request(server.url, path=urlsplit(server.url).path + name).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "EVIL"])
def test_other_methods_are_refused(server: PageServer, method: str) -> None:
    response = request(server.url, method=method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"
    assert "Access-Control-Allow-Origin" not in response.headers


def test_head_has_the_headers_and_no_body(server: PageServer) -> None:
    response = request(server.url, method="HEAD")
    assert (response.status, response.text) == (200, "") and int(response.headers["Content-Length"]) > 0


@pytest.mark.parametrize("path", [*PATHS, "missing"])
def test_every_response_has_a_strict_policy(server: PageServer, path: str) -> None:
    headers = request(server.url, path=urlsplit(server.url).path + path, headers={"Origin": "http://evil"}).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ") and "frame-ancestors 'none'" in policy
    if path == "topology.svg":
        assert "script-src" not in policy and policy.endswith("sandbox")
    else:
        assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer", "links never carry the secret"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers and "Set-Cookie" not in headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_link_and_not_embed(server: PageServer, site: str) -> None:
    embedded = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert request(server.url, headers=embedded).status == 403
    assert request(server.url, headers={**embedded, "Sec-Fetch-Mode": "navigate"}).status == 200


def test_a_request_is_bounded(server: PageServer) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=REQUEST_TIMEOUT_S) as connection:
        connection.sendall(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            status = connection.recv(12)[-3:]
        except ConnectionError:
            status = b""
        assert status != b"200"


def test_many_idle_connections_do_not_keep_others_out(server: PageServer) -> None:
    parts = urlsplit(server.url)
    idle = [
        socket.create_connection((parts.hostname, parts.port), timeout=REQUEST_TIMEOUT_S)
        for _ in range(MAX_PER_ADDRESS + 4)
    ]
    try:
        assert request(server.url).status == 200
    finally:
        for connection in idle:
            connection.close()


class Elements(HTMLParser):
    """The names of elements and attributes of a document, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes.update(name for name, _ in attrs)


def test_names_never_become_markup_or_change_the_direction_of_text(serve: Serve) -> None:
    host = HostView(
        name=EVIL,
        agent=EVIL,
        note=EVIL,
        telemetry=EVIL,
        devices=(DeviceView(name=EVIL, type=EVIL, product=EVIL, health=EVIL, taints=(EVIL,), claims=(EVIL, EVIL)),),
        reclaim=ReclaimView(
            phase=EVIL, reasons=(EVIL,), claims=(ReleaseView(claim=EVIL, state=EVIL, pods=(EVIL,), why=EVIL),)
        ),
        problems=(EVIL,),
    )
    cluster = ClusterView(
        nodes=(NodeView(name=EVIL, families=((EVIL, 1),), devices=1, phase=EVIL, message=EVIL, claims=(EVIL,)),),
        pending=(PendingView(claim=EVIL, created=EVIL, reason=EVIL),),
        pending_total=1,
        notes=(EVIL,),
    )
    server = serve(host, cluster)
    for path in ("", "cluster"):
        response = request(server.url, path=urlsplit(server.url).path + path)
        assert response.status == 200
        elements = Elements(response.text)
        assert elements.found.count("script") == 1, "the script of the page"
        assert not {name for name in elements.attributes if name.startswith("on") or name == "style"}
        assert all(character.isprintable() or character == "\n" for character in response.text)
        assert "&lt;script&gt;" in response.text and "\\u202e" in response.text
        assert "X-Evil" not in response.headers


def test_texts_and_tables_are_bounded(serve: Serve) -> None:
    long = "x" * 100_000
    devices = tuple(DeviceView(name=f"{number}-{long}", claims=(long,) * 500) for number in range(2000))
    host = HostView(name=long, agent=long, devices=devices, problems=(long,) * 1000)
    response = request(serve(host).url)
    assert len(response.text) < 4_000_000
    assert "1,488 devices more" in response.text and "980 problems more" in response.text
