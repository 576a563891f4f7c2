"""Credentials that are replaced, expire, or are rejected."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_agent.kube_client import NODES, UnauthorizedError, UnavailableError, connect
from dra_agent.kube_client.config import read_kubeconfig
from dra_agent.kube_client.credentials import Credentials
from eventually import eventually
from fake_apiserver.certificates import Authority
from fake_apiserver.fake import FakeApi


def replace(path: Path, text: str) -> None:
    """Replace a file as the kubelet replaces a token: another file under the same name."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


@pytest.fixture
def node(fake_api: FakeApi) -> FakeApi:
    fake_api.put("nodes", {"metadata": {"name": "n1"}})
    return fake_api


def test_a_rejected_token_is_reread_at_once(node: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    node.tokens = {"old"}
    path = node.kubeconfig(tmp_path / "kubeconfig", tokenFile="token")

    async def main() -> None:
        async with connect(path) as api:
            await api.get(NODES, "n1")
            replace(token, "new\n")
            node.tokens = {"new"}
            await api.get(NODES, "n1")
            node.tokens = {"newest"}
            with pytest.raises(UnauthorizedError, match="has not expired"):
                await api.get(NODES, "n1")

    asyncio.run(main())
    assert len(node.requests) == 4, "one retry with new credentials, none with the same"


def test_a_token_is_reread_before_it_is_rejected(tmp_path: Path, node: FakeApi) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    path = node.kubeconfig(tmp_path / "kubeconfig", tokenFile="token")
    now = [0.0]

    async def main() -> None:
        credentials = Credentials(lambda: read_kubeconfig(path), clock=lambda: now[0])
        replace(token, "new")
        assert (await credentials.current())[0] == "Bearer old"
        now[0] = 31.0
        assert (await credentials.current())[0] == "Bearer new"
        token.unlink()
        now[0] = 62.0
        assert (await credentials.current())[0] == "Bearer new", "the cached token is used while the file is missing"

    asyncio.run(main())


def test_a_replaced_kubeconfig_is_used(node: FakeApi, tmp_path: Path) -> None:
    node.tokens = {"old"}
    path = node.kubeconfig(tmp_path / "kubeconfig", token="old")

    async def main() -> None:
        async with connect(path) as api:
            await api.get(NODES, "n1")
            node.tokens = {"new"}
            node.kubeconfig(tmp_path / "next", token="new").rename(path)
            await api.get(NODES, "n1")

    asyncio.run(main())


def write_exec_script(path: Path, document: Any, *, code: int = 0) -> dict[str, Any]:
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"open({str(path)!r} + '.ran', 'a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
        f"print({text!r})\nprint('no network', file=sys.stderr)\nsys.exit({code})\n"
    )
    path.chmod(0o700)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def test_an_exec_token_is_used_until_it_expires(node: FakeApi, tmp_path: Path) -> None:
    node.tokens = {"fresh"}
    command = tmp_path / "login"
    user = write_exec_script(command, {"status": {"token": "stale", "expirationTimestamp": "2124-01-01T00:00:00Z"}})
    path = node.kubeconfig(tmp_path / "kubeconfig", **user)

    async def main() -> None:
        async with connect(path) as api:
            with pytest.raises(UnauthorizedError):
                await api.get(NODES, "n1")
            write_exec_script(command, {"status": {"token": "fresh", "expirationTimestamp": "2124-01-01T00:00:00Z"}})
            await api.get(NODES, "n1")
            await api.get(NODES, "n1")
            runs = Path(f"{command}.ran").read_text().splitlines()
            assert len(runs) == 3, "initially, and after each rejection"
            assert json.loads(runs[0])["kind"] == "ExecCredential"
            write_exec_script(command, {"status": {"token": "fresh", "expirationTimestamp": "2001-01-01T00:00:00Z"}})
            node.tokens = {"other"}
            with pytest.raises(UnauthorizedError):
                await api.get(NODES, "n1")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("printed", "code", "message"),
    [("{}", 0, "no ExecCredential"), ("", 1, "failed.*no network"), ({"status": {"token": 1}}, 0, "no ExecCredential")],
)
def test_a_failing_exec_command_is_unavailable(
    node: FakeApi, tmp_path: Path, printed: Any, code: int, message: str
) -> None:
    path = node.kubeconfig(tmp_path / "kubeconfig", **write_exec_script(tmp_path / "login", printed, code=code))

    async def main() -> None:
        async with connect(path) as api:
            with pytest.raises(UnavailableError, match=message):
                await api.get(NODES, "n1")

    asyncio.run(main())


def secure_config(api: FakeApi, path: Path, authority: Authority | None, **user: Any) -> Path:
    config = json.loads(api.kubeconfig(path, **user).read_text())
    if authority is not None:
        config["clusters"][0]["cluster"]["certificate-authority"] = str(authority.certificate)
    path.write_text(json.dumps(config))
    return path


def test_an_exec_command_gets_the_cluster_info_on_request(
    secure: FakeApi, authority: Authority, tmp_path: Path
) -> None:
    secure.tokens = {"t"}
    command = tmp_path / "login"
    user = write_exec_script(command, {"status": {"token": "t"}})
    user["exec"]["provideClusterInfo"] = True
    path = secure_config(secure, tmp_path / "kubeconfig", authority, **user)
    config = json.loads(path.read_text())
    exec_config = {"audience": "here"}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": exec_config}
    config["clusters"][0]["cluster"]["extensions"] = [{"name": "other", "extension": 1}, extension]
    path.write_text(json.dumps(config))

    async def main() -> None:
        async with connect(path) as api:
            await api.get(NODES, "n1")

    asyncio.run(main())
    cluster_info = json.loads(Path(f"{command}.ran").read_text())["spec"]["cluster"]
    assert cluster_info["server"] == config["clusters"][0]["cluster"]["server"]
    assert base64.b64decode(cluster_info["certificate-authority-data"]) == authority.certificate.read_bytes()
    assert cluster_info["config"] == exec_config


def test_a_replaced_client_certificate_is_used(secure: FakeApi, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("agent")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    path = secure_config(secure, tmp_path / "kubeconfig", authority, **user)

    async def main() -> None:
        async with connect(path) as api:
            await api.get(NODES, "n1")
            authority.issue("agent")
            secure.fail(401)
            await api.get(NODES, "n1")

    asyncio.run(main())
    assert len(secure.requests) == 3


def test_certificate_data_is_never_written_to_disk(secure: FakeApi, authority: Authority, tmp_path: Path) -> None:
    certificate, key = (base64.b64encode(file.read_bytes()).decode() for file in authority.issue("agent"))
    user = {"client-certificate-data": certificate, "client-key-data": key}
    path = secure_config(secure, tmp_path / "kubeconfig", authority, **user)
    handles = len(list(Path("/proc/self/fd").iterdir()))

    async def main() -> None:
        async with connect(path) as api:
            await api.get(NODES, "n1")

    asyncio.run(main())
    # The server closes its end of the connection in a separate thread.
    eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) <= handles + 2)


@pytest.mark.parametrize(
    ("valid", "trusted", "message"),
    [
        (timedelta(days=-1), True, "certificate has expired.*check the clock"),
        (timedelta(days=1), False, "certificate is not accepted"),
    ],
)
def test_an_untrusted_server_is_reported_with_the_reason(
    authority: Authority, tmp_path: Path, valid: timedelta, trusted: bool, message: str
) -> None:
    api = FakeApi(authority.server_context("other", valid=valid))
    api.start()
    path = secure_config(api, tmp_path / "kubeconfig", authority if trusted else None)

    async def main() -> None:
        async with connect(path) as client:
            with pytest.raises(UnavailableError, match=message):
                await client.get(NODES, "n1")

    try:
        asyncio.run(main())
    finally:
        api.stop()


def test_an_invalid_client_certificate_is_reported(secure: FakeApi, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "agent.crt").write_text("nothing")
    user = {"client-certificate": "agent.crt", "client-key": "agent.crt"}
    path = secure_config(secure, tmp_path / "kubeconfig", authority, **user)
    with pytest.raises(UnavailableError, match="client certificate cannot be used"):
        connect(path)


@pytest.mark.parametrize("text", [None, "", "nothing"])
def test_an_invalid_authority_is_reported(
    secure: FakeApi, authority: Authority, tmp_path: Path, text: str | None
) -> None:
    authority.certificate.unlink()
    if text is not None:
        authority.certificate.write_text(text)
    with pytest.raises(UnavailableError, match="authority cannot be used") as error:
        connect(secure_config(secure, tmp_path / "kubeconfig", authority))
    assert str(authority.certificate) in str(error.value)


@pytest.mark.parametrize("token", ["secret one", "secret\nsecret", "secret\x00", "s\u00e9cret"])
def test_an_invalid_token_is_refused_and_not_shown(node: FakeApi, tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    by_file = node.kubeconfig(tmp_path / "by-file", tokenFile="token")
    by_text = node.kubeconfig(tmp_path / "by-text", token=token)
    for path in (by_file, by_text):
        with pytest.raises(UnavailableError, match="token") as error:
            connect(path)
        assert "cret" not in str(error.value)
    by_command = node.kubeconfig(
        tmp_path / "by-command", **write_exec_script(tmp_path / "login", {"status": {"token": token}})
    )

    async def main() -> None:
        async with connect(by_command) as api:
            with pytest.raises(UnavailableError, match="characters") as error:
                await api.get(NODES, "n1")
            assert "cret" not in str(error.value)

    asyncio.run(main())
    assert not node.requests


@pytest.mark.parametrize("name", ["client-certificate", "client-key", "certificate-authority", "tokenFile"])
def test_a_fifo_instead_of_a_credential_file_is_refused_at_once(
    secure: FakeApi, authority: Authority, tmp_path: Path, name: str
) -> None:
    for file in ("agent.crt", "agent.key"):
        (tmp_path / file).write_bytes(authority.certificate.read_bytes())
    user = {"client-certificate": "agent.crt", "client-key": "agent.key"}
    os.mkfifo(tmp_path / "fifo")
    if name == "certificate-authority":
        authority.certificate.unlink()
        os.mkfifo(authority.certificate)
    else:
        user[name] = "fifo"
    with pytest.raises(UnavailableError, match="FIFO"):
        connect(secure_config(secure, tmp_path / "kubeconfig", authority, **user))
