"""Reads on threads: everything but a complete response is left to the event loop, within the same limits."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_agent.kube_client import (
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiClient,
    ForbiddenError,
    ThrottledError,
    UnavailableError,
    connect,
)
from dra_agent.kube_client.config import read_kubeconfig
from dra_agent.kube_client.credentials import CHECK_INTERVAL_S, Credentials
from dra_agent.kube_client.http import HttpTransport
from dra_agent.kube_client.slots import MAX_REQUESTS_OF_A_RESOURCE, RequestSlots
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.certificates import Authority
from fake_apiserver.fake import FakeApi
from fake_apiserver.test_credentials import replace, secure_config
from silent_address import HungLookup

GOOD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def node(fake_api: FakeApi) -> FakeApi:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})
    return fake_api


def read(api: ApiClient, timeout: float = DEADLINE_S) -> Any:
    return api.get_on_thread(NODES, "n1", timeout=timeout)


def test_reads_of_many_threads_keep_few_connections(node: FakeApi, tmp_path: Path) -> None:
    async def main() -> None:
        async with connect(node.kubeconfig(tmp_path / "kubeconfig", token="abc")) as api:
            assert read(api)["metadata"]["name"] == "n1"
            assert read(api) == await api.get(NODES, "n1")
            with ThreadPoolExecutor(16) as pool:
                found = list(pool.map(lambda _: read(api), range(100)))
            assert any(found) and all(one is None or one["metadata"]["name"] == "n1" for one in found)
            assert api.requests["GET"] == len(node.requests)

    asyncio.run(main())
    # One more for the event loop. Of six connections that become idle, two are closed before any is opened.
    assert node.connections <= 1 + MAX_REQUESTS_OF_A_RESOURCE + len(node.requests) // 2


def test_hanging_reads_leave_slots_for_other_requests(node: FakeApi, tmp_path: Path) -> None:
    respond = threading.Event()
    node.hang(60, times=None, path="/resourceclaims/", when=respond)
    created = {"metadata": {"name": "s"}, "spec": {"nodeName": "n1", "driver": "d", "pool": {"name": "p"}}}

    async def main() -> None:
        async with connect(node.kubeconfig(tmp_path / "kubeconfig", token="abc")) as api:

            def claim() -> Any:
                return api.get_on_thread(RESOURCE_CLAIMS, "c", "default", timeout=DEADLINE_S)

            with ThreadPoolExecutor(MAX_REQUESTS_OF_A_RESOURCE) as pool:
                reads = [pool.submit(claim) for _ in range(MAX_REQUESTS_OF_A_RESOURCE)]
                await eventually_async(lambda: len(node.requests) == MAX_REQUESTS_OF_A_RESOURCE)
                assert claim() is None, "a seventh read waits for a slot on the event loop"
                waiting = asyncio.create_task(api.get(RESOURCE_CLAIMS, "c", "default", timeout=DEADLINE_S))
                await api.create(RESOURCE_SLICES, created)
                assert not waiting.done()
                respond.set()
                await asyncio.gather(*map(asyncio.wrap_future, reads), waiting, return_exceptions=True)
            assert "not found" in str(waiting.exception()), "a thread that ends its read starts the waiting one"

    asyncio.run(main())


def test_an_error_of_the_server_needs_no_second_request(node: FakeApi, tmp_path: Path) -> None:
    async def main() -> None:
        async with connect(node.kubeconfig(tmp_path / "kubeconfig", token="abc")) as api:
            node.fail(403)
            with pytest.raises(ForbiddenError):
                read(api)
            node.fail(429, retry_after=7)
            with pytest.raises(ThrottledError) as caught:
                read(api)
            assert caught.value.retry_after == 7
            assert len(node.requests) == 2

    asyncio.run(main())


def test_a_rejected_token_is_renewed_on_the_event_loop(node: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    node.tokens = {"old"}

    async def main() -> None:
        async with connect(node.kubeconfig(tmp_path / "kubeconfig", tokenFile="token")) as api:
            assert read(api)
            replace(token, "new\n")
            node.tokens = {"new"}
            assert read(api) is None
            await api.get(NODES, "n1")
            before = node.connections
            assert read(api)
            assert node.connections == before + 1, "a connection may have the old client certificate"

    asyncio.run(main())


def test_the_first_read_after_a_quiet_time_checks_the_files_on_its_thread(node: FakeApi, tmp_path: Path) -> None:
    token, now = tmp_path / "token", [0.0]
    token.write_text("old")
    path = node.kubeconfig(tmp_path / "kubeconfig", tokenFile="token")

    async def main() -> None:
        credentials = Credentials(lambda: read_kubeconfig(path), clock=lambda: now[0])
        async with ApiClient(HttpTransport(credentials)) as api:
            assert read(api)
            now[0] += CHECK_INTERVAL_S + 1
            assert read(api), "unchanged files need no event loop"
            replace(token, "new")
            node.tokens = {"new"}
            now[0] += CHECK_INTERVAL_S + 1
            assert read(api) is None, "changed files are read on the event loop"
            assert len(node.requests) == 2, "the old token is not sent again"
            await api.get(NODES, "n1")
            assert read(api)

    asyncio.run(main())


def test_files_that_are_lost_keep_the_credentials(node: FakeApi, tmp_path: Path) -> None:
    token, now = tmp_path / "token", [0.0]
    token.write_text("abc")
    path = node.kubeconfig(tmp_path / "kubeconfig", tokenFile="token")

    async def main() -> None:
        credentials = Credentials(lambda: read_kubeconfig(path), clock=lambda: now[0])
        async with ApiClient(HttpTransport(credentials)) as api:
            token.unlink()
            now[0] += CHECK_INTERVAL_S + 1
            assert read(api) is None
            await api.get(NODES, "n1")
            assert read(api), "until the next check"

    asyncio.run(main())


def test_a_server_of_another_authority_gets_no_token(tmp_path: Path) -> None:
    other = FakeApi(Authority(tmp_path / "other").server_context())
    other.start()
    try:
        path = secure_config(other, tmp_path / "kubeconfig", Authority(tmp_path / "ours"), token="abc")

        async def main() -> None:
            async with connect(path) as api:
                assert read(api) is None

        asyncio.run(main())
        assert not other.requests
    finally:
        other.stop()


def test_reads_over_tls_reuse_their_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    secure = FakeApi(authority.server_context())
    secure.start()
    try:
        secure.put("nodes", {"metadata": {"name": "n1"}})
        path = secure_config(secure, tmp_path / "kubeconfig", authority, token="abc")

        async def main() -> None:
            async with connect(path) as api:
                assert all(read(api) for _ in range(3))

        asyncio.run(main())
        assert secure.connections == 1
    finally:
        secure.stop()


def test_a_kept_connection_that_the_server_closed_is_replaced(node: FakeApi, tmp_path: Path) -> None:
    async def main() -> None:
        async with connect(node.kubeconfig(tmp_path / "kubeconfig", token="abc")) as api:
            assert read(api)
            node.stop()
            node.start()
            assert read(api) and len(node.requests) == 2

    asyncio.run(main())


def test_a_read_that_hangs_ends_at_its_deadline_and_at_a_stop(node: FakeApi, tmp_path: Path) -> None:
    node.hang(60, times=None, path="/nodes/")

    async def main() -> None:
        async with connect(node.kubeconfig(tmp_path / "kubeconfig", token="abc")) as api:
            with pytest.raises(UnavailableError, match=r"no response within 0\.2 s"):
                read(api, timeout=0.2)
            running = asyncio.create_task(asyncio.to_thread(read, api))
            await eventually_async(lambda: len(node.requests) == 2)
            await api.close()
            assert await running is None
            assert read(api) is None and len(node.requests) == 2, "no read starts after a stop"

    asyncio.run(main())


@contextmanager
def raw_server(response: bytes) -> Iterator[str]:
    """Serve these bytes for each request, and keep the connection open."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data = b""
            while part := self.request.recv(1 << 16):
                data += part
                if data.endswith(b"\r\n\r\n"):
                    data = b""
                    self.request.sendall(response)
                    if response.endswith(b"CLOSE"):
                        self.request.shutdown(socket.SHUT_RDWR)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def kubeconfig_of(url: str, folder: Path) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        f"""{{current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}],
        clusters: [{{name: a, cluster: {{server: "{url}"}}}}], users: [{{name: a, user: {{}}}}]}}"""
    )
    return path


@pytest.mark.parametrize(
    "response",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}CLOSE",
        GOOD.replace(b"Length: 2", b"Length: 2\r\nContent-Length: 3"),
        GOOD.replace(b"Length: 2", b"Length: -2"),
        GOOD.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked").replace(b"{}", b"zz\r\n"),
        GOOD.replace(b"OK\r\n", b"OK\r\nX: " + b"y" * 300_000 + b"\r\n"),
        GOOD.replace(b"Length: 2", b"Length: 9000000").replace(b"{}", b" " * 9_000_000),
        GOOD.replace(b"application/json", b"text/html"),
        GOOD.replace(b"200 OK", b"302 Found\r\nLocation: http://127.0.0.1:1"),
    ],
    ids=["nonsense", "cut", "two lengths", "negative", "chunk", "headers", "large", "html", "redirect"],
)
def test_any_other_response_is_left_to_the_event_loop(tmp_path: Path, response: bytes) -> None:
    with raw_server(response) as url:
        path = kubeconfig_of(url, tmp_path)

        async def main() -> None:
            async with connect(path) as api:
                assert read(api) is None

        asyncio.run(main())


def test_a_surplus_response_is_not_that_of_the_next_request(tmp_path: Path) -> None:
    with raw_server(GOOD + GOOD.replace(b"{}", b"[]")) as url:
        path = kubeconfig_of(url, tmp_path)

        async def main() -> None:
            async with connect(path) as api:
                for _ in range(3):
                    assert read(api) in ({}, None)
                    assert await api.get(NODES, "n1") == {}

        asyncio.run(main())


def test_the_lookup_of_a_name_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig_of("http://api.example.com:6443", tmp_path)

    async def main() -> None:
        async with connect(path) as api:
            lookup = HungLookup(monkeypatch)
            for _ in range(3):
                with pytest.raises(UnavailableError, match=r"no response within 0\.05 s"):
                    read(api, timeout=0.05)
            assert len(lookup.calls) == 1, "a lookup that hangs is not started again"
            lookup.answered.set()
            await eventually_async(lambda: read(api) is None and len(lookup.calls) > 1)

    asyncio.run(main())


def test_connections_of_old_credentials_are_closed(node: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    respond, now = threading.Event(), [0.0]
    path = node.kubeconfig(tmp_path / "kubeconfig", tokenFile="token")

    async def main() -> None:
        credentials = Credentials(lambda: read_kubeconfig(path), clock=lambda: now[0])
        async with ApiClient(HttpTransport(credentials)) as api:
            assert read(api)
            await asyncio.gather(*(api.get(NODES, "n1") for _ in range(3)))
            await eventually_async(lambda: node.open_connections == node.connections)
            node.hang(60, times=1, path="/nodes/", when=respond)
            late = asyncio.create_task(asyncio.to_thread(read, api))
            requests = len(node.requests)
            await eventually_async(lambda: len(node.requests) == requests + 1)
            replace(token, "new\n")
            now[0] = CHECK_INTERVAL_S + 1
            before = node.connections
            await api.get(NODES, "n1")
            assert node.connections == before + 1
            respond.set()
            assert await late
            await eventually_async(lambda: node.open_connections == 1, "only the new one is open")

    asyncio.run(main())


def test_a_slot_is_released_after_the_event_loop_has_ended() -> None:
    slots = RequestSlots(1, 1)
    assert slots.try_acquire("nodes")

    async def wait() -> Coroutine[Any, Any, None]:
        request = slots.acquire("nodes")
        request.send(None)
        return request

    waiting = asyncio.run(wait())
    assert slots.waiting == 1
    slots.release("nodes")
    assert slots.waiting == 0 and slots.try_acquire("nodes")
    waiting.close()
