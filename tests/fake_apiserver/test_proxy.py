"""Requests through an HTTP proxy, by `proxy-url` of the kubeconfig or by variables of the environment."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dra_agent.errors import UsageError
from dra_agent.kube_client import NODES, UnavailableError, connect
from dra_agent.kube_client.proxy import Proxy, is_exempt, parse_proxy, proxy_of_environment
from eventually import DEADLINE_S
from fake_apiserver.certificates import Authority
from fake_apiserver.connect_proxy import OPEN, ConnectProxy, connect_proxy
from fake_apiserver.fake import FakeApi
from fake_apiserver.test_credentials import secure_config, write_exec_script
from silent_address import address_of as resolved
from silent_address import resolve, silent_address

TOKEN = "c2VjcmV0LXRva2Vu.of-this-node"


@pytest.fixture
def proxy(secure: FakeApi) -> Iterator[ConnectProxy]:
    with connect_proxy(address_of(secure)) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def address_of(api: FakeApi) -> tuple[str, int]:
    parts = urlsplit(api.url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


def kubeconfig(api: FakeApi, path: Path, authority: Authority, cluster: dict[str, Any], **user: Any) -> Path:
    config = json.loads(secure_config(api, path, authority, **(user or {"token": TOKEN})).read_text())
    config["clusters"][0]["cluster"] |= cluster
    path.write_text(json.dumps(config))
    return path


def elsewhere(api: FakeApi) -> dict[str, Any]:
    """A cluster entry with a name of the server that only the proxy can reach."""
    return {"server": f"https://api.example.invalid:{address_of(api)[1]}", "tls-server-name": "127.0.0.1"}


def get(path: Path, times: int = 1) -> None:
    async def main() -> None:
        async with connect(path) as api:
            for _ in range(times):
                assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"

    asyncio.run(main())


def test_the_proxy_of_a_kubeconfig_reads_neither_requests_nor_the_token(
    secure: FakeApi, authority: Authority, proxy: ConnectProxy, tmp_path: Path
) -> None:
    get(kubeconfig(secure, tmp_path / "kubeconfig", authority, {"proxy-url": f"http://{proxy.address}"}), times=3)
    (head,) = proxy.heads  # the connection is kept
    assert head.startswith(f"CONNECT 127.0.0.1:{address_of(secure)[1]} HTTP/1.1\r\n")
    assert "authorization" not in head.lower()
    assert secure.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert len(proxy.seen) > 0 and TOKEN.encode() not in proxy.seen and b"nodes" not in proxy.seen


def test_reads_on_threads_use_the_proxy(
    secure: FakeApi, authority: Authority, proxy: ConnectProxy, tmp_path: Path
) -> None:
    path = kubeconfig(secure, tmp_path / "kubeconfig", authority, {**elsewhere(secure), "proxy-url": proxy.address})

    async def main() -> None:
        async with connect(path) as api:
            found = api.get_on_thread(NODES, "n1", timeout=DEADLINE_S)
            assert found is not None and found["metadata"]["name"] == "n1"

    asyncio.run(main())
    assert [head.split()[1] for head in proxy.heads] == [f"api.example.invalid:{address_of(secure)[1]}"]


def test_the_environment_names_the_proxy_and_the_exceptions(
    secure: FakeApi, authority: Authority, proxy: ConnectProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://agent:se%40cret@{proxy.address}")
    path = kubeconfig(secure, tmp_path / "kubeconfig", authority, elsewhere(secure))
    get(path)
    (head,) = proxy.heads
    expected = base64.b64encode(b"agent:se@cret").decode()
    assert f"Proxy-Authorization: Basic {expected}\r\n" in head
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.example.invalid")
    with pytest.raises(UnavailableError, match="no connection"):
        get(path)  # directly, where this name does not exist
    assert len(proxy.heads) == 1


def test_a_server_on_loopback_needs_no_exception(
    secure: FakeApi, authority: Authority, proxy: ConnectProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.address)
    get(kubeconfig(secure, tmp_path / "kubeconfig", authority, {}))
    assert proxy.heads == []


def test_a_proxy_that_ends_tls_itself_gets_no_token(secure: FakeApi, authority: Authority, tmp_path: Path) -> None:
    hostile = FakeApi(Authority(tmp_path / "hostile").server_context())
    hostile.start()
    try:
        with connect_proxy(address_of(hostile)) as proxy:
            path = kubeconfig(secure, tmp_path / "kubeconfig", authority, {"proxy-url": f"http://{proxy.address}"})
            with pytest.raises(UnavailableError, match="certificate is not accepted"):
                get(path)
            assert len(proxy.heads) == 1
    finally:
        hostile.stop()
    assert hostile.requests == [] and secure.requests == []


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "opens no tunnel to 127.0.0.1:.*: HTTP 403 Forbidden"),
        (b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n", "HTTP 407 Who are you; give user and password"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not respond as HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "sends data before"),
        (b"", "the proxy closes the connection"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "does not respond as HTTP"),
    ],
    ids=["forbidden", "password", "not HTTP", "surplus", "closed", "endless"],
)
def test_a_proxy_without_a_tunnel_is_reported(
    secure: FakeApi, authority: Authority, tmp_path: Path, response: bytes, message: str
) -> None:
    with connect_proxy(address_of(secure), response) as proxy:
        url = f"http://agent:se-cret@{proxy.address}"
        path = kubeconfig(secure, tmp_path / "kubeconfig", authority, {"proxy-url": url})
        with pytest.raises(UnavailableError, match=message) as error:
            get(path)
        assert f"through the proxy http://{proxy.address}" in str(error.value)
        assert "se-cret" not in str(error.value)
    assert secure.requests == []


@pytest.mark.parametrize("on_thread", [False, True], ids=["event loop", "thread"])
def test_a_silent_proxy_is_reported_after_the_timeout(
    secure: FakeApi, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_thread: bool
) -> None:
    monkeypatch.setattr("dra_agent.kube_client.connection.CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr("dra_agent.kube_client.thread_reads.CONNECT_TIMEOUT_S", 0.2)
    with connect_proxy(address_of(secure), None) as proxy:
        path = kubeconfig(secure, tmp_path / "kubeconfig", authority, {"proxy-url": f"http://{proxy.address}"})

        async def main() -> None:
            async with connect(path) as api:
                if on_thread:
                    assert api.get_on_thread(NODES, "n1", timeout=DEADLINE_S) is None, "the event loop has the message"
                else:
                    with pytest.raises(UnavailableError, match="no connection in"):
                        await api.get(NODES, "n1")

        asyncio.run(main())


@pytest.mark.parametrize("on_thread", [False, True], ids=["event loop", "thread"])
@pytest.mark.parametrize("by_proxy", [False, True], ids=["direct", "proxy"])
def test_a_server_or_proxy_is_reached_although_its_first_address_does_not_respond(
    secure: FakeApi,
    authority: Authority,
    proxy: ConnectProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_proxy: bool,
    on_thread: bool,
) -> None:
    monkeypatch.setattr("dra_agent.kube_client.connection.CONNECT_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr("dra_agent.kube_client.thread_reads.CONNECT_TIMEOUT_S", DEADLINE_S)
    host, _, port = (proxy.address if by_proxy else urlsplit(secure.url).netloc).rpartition(":")
    through = {"proxy-url": "http://host.example:3128"}
    direct = {"server": "https://host.example:6443", "tls-server-name": "127.0.0.1"}
    path = kubeconfig(secure, tmp_path / "kubeconfig", authority, through if by_proxy else direct)

    async def main() -> None:
        async with connect(path) as api:
            if on_thread:
                assert api.get_on_thread(NODES, "n1", timeout=DEADLINE_S) is not None
            else:
                await api.get(NODES, "n1")

    with silent_address() as silent:
        resolve(monkeypatch, "host.example", [silent, resolved((host, int(port)))])
        asyncio.run(main())


def test_informational_responses_of_a_proxy_are_skipped(secure: FakeApi, authority: Authority, tmp_path: Path) -> None:
    with connect_proxy(address_of(secure), b"HTTP/1.1 103 Wait\r\n\r\n" + OPEN) as proxy:
        get(kubeconfig(secure, tmp_path / "kubeconfig", authority, {"proxy-url": f"http://{proxy.address}"}))


def test_an_exec_command_learns_the_proxy(
    secure: FakeApi, authority: Authority, proxy: ConnectProxy, tmp_path: Path
) -> None:
    command = tmp_path / "login"
    user = write_exec_script(command, {"status": {"token": TOKEN}})
    user["exec"]["provideClusterInfo"] = True
    url = f"http://{proxy.address}"
    get(kubeconfig(secure, tmp_path / "kubeconfig", authority, {"proxy-url": url}, **user))
    info = json.loads(Path(f"{command}.ran").read_text().splitlines()[0])
    assert info["spec"]["cluster"]["proxy-url"] == url


@pytest.mark.parametrize(
    ("exceptions", "host", "exempt"),
    [
        ("", "10.0.0.1", False),
        ("*", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("10.0.0.1:6443", "10.0.0.1", True),
        ("10.0.0.1:443", "10.0.0.1", False),
        (" 192.168.0.0/16 , 10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/33,10.0.0.0/nine", "10.0.0.1", False),
        ("fd00::/8", "fd00::1", True),
        ("[fd00::1]:6443", "fd00::1", True),
        ("[fd00::1]:443", "fd00::1", False),
        ("fd00:0:0::1", "fd00::1", True),
        ("example.com", "example.com", True),
        ("example.com", "api.example.com", True),
        ("Example.COM", "api.example.com", True),
        ("example.com", "badexample.com", False),
        (".example.com", "api.example.com", True),
        (".example.com", "example.com", False),
        ("*.example.com", "api.example.com", True),
        ("*.example.com", "example.com", False),
        ("example.com:6443", "api.example.com", True),
        ("example.com:443", "api.example.com", False),
        ("0.0.1", "10.0.0.1", False),
        (":6443,,", "10.0.0.1", False),
    ],
)
def test_exceptions_are_those_of_go(exceptions: str, host: str, exempt: bool) -> None:
    assert is_exempt(host, 6443, exceptions) is exempt


@pytest.mark.parametrize(
    ("server", "environ", "expected"),
    [
        ("https://10.0.0.1:6443", {}, None),
        ("https://10.0.0.1:6443", {"HTTPS_PROXY": "http://proxy:3128"}, Proxy("proxy", 3128)),
        ("https://10.0.0.1:6443", {"https_proxy": "proxy:3128"}, Proxy("proxy", 3128)),
        ("https://10.0.0.1:6443", {"HTTPS_PROXY": "", "https_proxy": "http://proxy"}, Proxy("proxy", 80)),
        ("https://10.0.0.1:6443", {"HTTPS_PROXY": "http://[fd00::2]:3128"}, Proxy("fd00::2", 3128)),
        ("https://10.0.0.1", {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1:443"}, None),
        ("https://10.0.0.1:6443", {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "10.0.0.0/8"}, None),
        ("https://10.0.0.1:6443", {"HTTP_PROXY": "http://proxy:3128", "ALL_PROXY": "http://proxy:3128"}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://proxy:3128"}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://proxy:3128"}, None),
        ("http://10.0.0.1:8001", {"HTTPS_PROXY": "http://proxy:3128"}, None),
    ],
)
def test_variables_of_the_environment(server: str, environ: dict[str, str], expected: Proxy | None) -> None:
    assert proxy_of_environment(server, environ) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("socks5://agent:se-cret@proxy:1080", "socks5:// is not supported"),
        ("https://agent:se-cret@proxy:3128", "https:// is not supported"),
        ("http://agent:se-cret@", "not the address of a proxy"),
        ("http://agent:se-cret@proxy:70000", "not the address of a proxy"),
        ("http://agent:se-cret@proxy:0", "not the address of a proxy"),
        ("http://agent:se-cret@[::1", "not the address of a proxy"),
    ],
)
def test_an_unusable_proxy_is_reported_without_its_password(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_proxy(url, where="HTTPS_PROXY")
    assert "HTTPS_PROXY" in str(error.value) and "NO_PROXY" in str(error.value)
    assert "se-cret" not in str(error.value)
