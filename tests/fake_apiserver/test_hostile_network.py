"""Attacks of a peer between the agent and its API server (attacker N), and the agent's errors."""

from __future__ import annotations

import asyncio
import http.server
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import AgentError
from dra_agent.kube_client import NODES, UnavailableError, connect
from fake_apiserver.certificates import Authority
from fake_apiserver.fake import FakeApi
from fake_apiserver.test_credentials import secure_config

TOKEN = "c2VjcmV0LXRva2Vu.of-this-node"


class RecordingServer(http.server.ThreadingHTTPServer):
    """A foreign server that records requests."""

    daemon_threads = True

    def __init__(self) -> None:
        self.heads: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.heads.append(f"{self.requestline}\n{self.headers}")
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def foreign_server() -> Iterator[RecordingServer]:
    server = RecordingServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.fixture
def node(fake_api: FakeApi) -> FakeApi:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})
    return fake_api


def get(path: Path) -> Any:
    async def main() -> Any:
        async with connect(path) as api:
            return await api.get(NODES, "n1")

    return asyncio.run(main())


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_no_token_follows_a_redirect(node: FakeApi, foreign_server: RecordingServer, tmp_path: Path, code: int) -> None:
    node.fail(code, body="").headers["Location"] = f"{foreign_server.url}/api/v1/nodes/n1"
    with pytest.raises(UnavailableError, match="redirects"):
        get(node.kubeconfig(tmp_path / "kubeconfig", token=TOKEN))
    assert foreign_server.heads == []


@pytest.mark.parametrize("known", [True, False], ids=["another authority", "no authority"])
def test_no_token_reaches_a_server_of_another_authority(tmp_path: Path, known: bool) -> None:
    hostile = FakeApi(Authority(tmp_path / "hostile").server_context())
    hostile.start()
    authority = Authority(tmp_path / "ours") if known else None
    try:
        with pytest.raises(UnavailableError, match="certificate is not accepted"):
            get(secure_config(hostile, tmp_path / "kubeconfig", authority, token=TOKEN))
        assert hostile.requests == []
    finally:
        hostile.stop()


@pytest.mark.parametrize("fault", ["none", "401", "403", "500", "302", "html", "reset"])
def test_no_log_and_no_error_contains_a_token(
    node: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    caplog.set_level(logging.DEBUG)
    if fault == "reset":
        node.reset(times=None)
    elif fault == "html":
        node.html()
    elif fault != "none":
        # Hostile: the response contains the token of the request.
        node.fail(int(fault), times=None, body='{"message": "a fault"}').headers["X-Echo"] = TOKEN
    shown = ""
    try:
        get(node.kubeconfig(tmp_path / "kubeconfig", token=TOKEN))
    except AgentError as error:
        shown = f"{error!r} {error}"
    assert TOKEN not in caplog.text + shown
    assert bool(shown) == (fault != "none")
