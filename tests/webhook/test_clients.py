"""Clients of the webhook over real TLS: with --client-ca reviews are for those that the authority vouches for."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_agent.webhook import server
from dra_agent.webhook.clients import ClientRule
from fake_apiserver.certificates import Authority
from webhook.keys import Secret
from webhook.test_server import RIGHT, Running, post, verdict

Pair = tuple[Path, Path]
Start = Callable[..., Running]
STRANGERS = 'dra_agent_webhook_reviews_total{result="unauthenticated"}'


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "tls")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def start(secret: Secret, authority: Authority, tmp_path: Path) -> Iterator[Start]:
    """Start the webhook with clients of `authority`, and with more arguments."""
    running: list[Running] = []

    def started(*arguments: str) -> Running:
        running.append(Running(secret, tmp_path / "log", "--client-ca", authority.certificate, *arguments))
        return running[-1]

    yield started
    for webhook in running:
        if webhook.process.poll() is None:
            webhook.process.kill()
        webhook.process.wait()


def client(webhook: Running, pair: Pair | None, *, newest: ssl.TLSVersion | None = None) -> http.client.HTTPSConnection:
    context = webhook.secret.trusted()
    if newest is not None:
        context.maximum_version = newest
    if pair is not None:
        context.load_cert_chain(*pair)
    return webhook.connect(context)


def answer(webhook: Running, pair: Pair | None, body: bytes = RIGHT) -> tuple[int, bytes]:
    with closing(client(webhook, pair)) as connection:
        return post(connection, body)


def test_a_client_of_the_authority_is_answered(start: Start, authority: Authority) -> None:
    webhook = start()
    pair = authority.issue("kube-apiserver")
    for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with closing(client(webhook, pair, newest=newest)) as connection:
            assert verdict(post(connection, RIGHT))["allowed"] is True
            assert verdict(post(connection, RIGHT))["allowed"] is True
    assert webhook.metric(STRANGERS) == 0


@pytest.mark.parametrize("size", [len(RIGHT), server.SMALL_BODY_BYTES * 4], ids=["small", "large"])
def test_a_client_without_a_certificate_learns_why_and_nothing_of_it_is_judged(start: Start, size: int) -> None:
    webhook = start()
    with closing(client(webhook, None)) as connection:
        connection.request("POST", "/validate", RIGHT + b" " * (size - len(RIGHT)))
        refusal = connection.getresponse()
        assert (refusal.status, refusal.read()) == (403, b"a client certificate is required and none was shown\n")
    webhook.said('client refused reason="a client certificate is required and none was shown"')
    assert webhook.metric(STRANGERS) == 1
    assert webhook.metric("dra_agent_webhook_review_duration_seconds_count") == 0, "nothing was judged"


def test_probes_need_no_certificate(start: Start) -> None:
    webhook = start()
    for path in ("/healthz", "/readyz"):
        with closing(client(webhook, None)) as connection:
            connection.request("GET", path)
            assert connection.getresponse().read() == b"ok\n"
    assert "client refused" not in webhook.log.read_text()


def test_a_certificate_of_another_authority_ends_the_handshake(start: Start, tmp_path: Path) -> None:
    webhook = start()
    other = Authority(tmp_path / "other").issue("kube-apiserver")
    with pytest.raises(OSError, match="unknown ca"):
        answer(webhook, other)
    webhook.said("client certificate is not valid: unable to get local issuer certificate")
    assert webhook.metric(STRANGERS) == 1


def test_a_certificate_that_has_expired_ends_the_handshake(start: Start, authority: Authority) -> None:
    webhook = start()
    expired = authority.issue("kube-apiserver", valid=timedelta(hours=-1))
    with pytest.raises(OSError, match="certificate expired"):
        answer(webhook, expired)
    webhook.said("client certificate is not valid: certificate has expired")


def test_a_certificate_of_a_server_is_none_of_a_client(start: Start, authority: Authority, tmp_path: Path) -> None:
    """One authority may issue both: a kubelet's serving certificate must not make its node a client."""
    webhook = start()
    key, request = authority.issue("node-b")[1], tmp_path / "serving.csr"
    serving, extension = tmp_path / "serving.crt", tmp_path / "serving.cnf"
    extension.write_text("extendedKeyUsage=serverAuth\n")
    sign = ["openssl", "x509", "-req", "-in", str(request), "-CA", str(authority.certificate)]
    sign += ["-CAkey", str(authority.certificate.with_suffix(".key")), "-CAcreateserial", "-days", "1"]
    for command in (
        ["openssl", "req", "-new", "-key", str(key), "-subj", "/CN=node-b", "-out", str(request)],
        [*sign, "-extfile", str(extension), "-out", str(serving)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(OSError, match="unsupported certificate"):
        answer(webhook, (serving, key))
    webhook.said("client certificate is not valid: uns")


def test_only_a_client_of_an_allowed_name_is_answered(start: Start, authority: Authority) -> None:
    webhook = start("--client-name", "kube-apiserver", "--client-name", "konnectivity")
    assert verdict(answer(webhook, authority.issue("kube-apiserver")))["allowed"] is True
    hostile = authority.issue("kube-apiserver2\x1b[31m")
    refused = answer(webhook, hostile)
    assert refused == (403, b"the client certificate is of kube-apiserver2\\x1b[31m, which is not an allowed name\n")
    assert "\x1b" not in webhook.log.read_text()


def test_refusals_are_counted_each_and_logged_seldom(start: Start) -> None:
    webhook = start()
    for _ in range(20):
        assert answer(webhook, None)[0] == 403
    assert webhook.metric(STRANGERS) == 20
    assert webhook.log.read_text().count("client refused") == 1


def test_a_replaced_authority_counts_at_once_and_for_those_that_are_connected(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    webhook = start()
    new = Authority(tmp_path / "new")
    before, after = authority.issue("kube-apiserver"), new.issue("kube-apiserver")
    with closing(client(webhook, before)) as kept:
        assert verdict(post(kept, RIGHT))["allowed"] is True
        new.certificate.replace(authority.certificate)
        webhook.said("certificate replaced")
        with pytest.raises((OSError, http.client.HTTPException)):
            post(kept, RIGHT)
            pytest.fail("a client of the former authority is still answered")
    with pytest.raises(OSError, match="unknown ca"):
        answer(webhook, before)
    assert verdict(answer(webhook, after))["allowed"] is True


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_of_a_former_authority_is_not_resumed(
    newest: ssl.TLSVersion, start: Start, authority: Authority, tmp_path: Path
) -> None:
    webhook = start()
    context = webhook.secret.trusted()
    context.maximum_version = newest
    context.load_cert_chain(*authority.issue("kube-apiserver"))

    def probed(session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", webhook.port), timeout=120) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
        ):
            tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert tls.recv(4096).startswith(b"HTTP/1.1 200")
            return tls.session_reused is True, tls.session

    session = probed(None)[1]
    assert session is not None and probed(session)[0], "sessions are resumed as long as the authority is the same"
    session = probed(None)[1]
    Authority(tmp_path / "new").certificate.replace(authority.certificate)
    webhook.said("certificate replaced")
    with pytest.raises(OSError, match="unknown ca"):
        probed(session)


def test_an_authority_that_cannot_be_used_changes_nothing(start: Start, authority: Authority) -> None:
    webhook = start()
    pair = authority.issue("kube-apiserver")
    right = authority.certificate.read_bytes()
    authority.certificate.write_bytes(b"no certificate\n")
    webhook.said("the new certificate cannot be used")
    assert webhook.metric("dra_agent_webhook_certificate_unusable") == 1
    assert verdict(answer(webhook, pair))["allowed"] is True
    assert answer(webhook, None)[0] == 403
    authority.certificate.write_bytes(right)


def test_a_certificate_that_expires_within_a_connection_counts_no_longer() -> None:
    class Connection(ssl.SSLObject):
        """What OpenSSL has verified when the connection began."""

        def __init__(self, end: str) -> None:
            self._end = end

        def getpeercert(self, binary_form: bool = False) -> Any:
            return {"subject": ((("commonName", "kube-apiserver"),),), "notAfter": self._end}

    rule = ClientRule(required=True)
    assert (
        rule.objection(Connection("Jan  1 00:00:00 2000 GMT"))
        == "the client certificate has expired since it was shown"
    )
    assert rule.objection(Connection("Jan  1 00:00:00 9999 GMT")) == ""


def run(*arguments: str | Path) -> tuple[int, str]:
    command = [Path(sys.executable).with_name("dra-agent"), "webhook", "--listen", "127.0.0.1:0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("flag", ["--tls-cert", "--tls-key", "--client-ca"])
def test_files_that_cannot_be_read_are_refused_at_once(
    flag: str, secret: Secret, authority: Authority, tmp_path: Path
) -> None:
    files: dict[str, Any] = {
        "--tls-cert": secret.certificate,
        "--tls-key": secret.key,
        "--client-ca": authority.certificate,
    }
    fifo, endless, empty = tmp_path / "fifo", tmp_path / "endless", tmp_path / "empty"
    subprocess.run(["mkfifo", fifo], check=True)
    endless.symlink_to("/dev/zero")
    empty.touch()
    with (tmp_path / "large").open("wb") as large:
        large.truncate(1 << 40)
    for path, reason in (
        (fifo, "Is a FIFO, not a regular file"),
        (endless, "Is a device, not a regular file"),
        (tmp_path / "large", "Larger than 1 MiB"),
        (tmp_path, "Is a directory"),
        (tmp_path / "missing", "No such file"),
        (empty, "give a PEM certificate"),
    ):
        code, said = run(*(part for name, file in {**files, flag: path}.items() for part in (name, file)))
        assert code == 2 and reason in said and str(path) in said, f"{path}: {said}"
        assert "Traceback" not in said


def test_names_without_an_authority_are_a_mistake(secret: Secret) -> None:
    code, said = run("--tls-cert", secret.certificate, "--tls-key", secret.key, "--client-name", "kube-apiserver")
    assert code == 2 and "--client-name" in said and "--client-ca" in said


def test_without_an_authority_nothing_is_asked_of_clients(secret: Secret, tmp_path: Path) -> None:
    webhook = Running(secret, tmp_path / "log")
    try:
        assert json.loads(answer(webhook, None)[1])["response"]["allowed"] is True
    finally:
        webhook.process.kill()
        webhook.process.wait()
