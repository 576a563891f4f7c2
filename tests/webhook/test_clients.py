"""TLS clients of the webhook: with --client-ca it reviews only for clients with a certificate of that authority."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import preloaded
from dra_agent.webhook import server
from dra_agent.webhook.clients import ClientRule
from fake_apiserver.certificates import Authority
from webhook.keys import Secret
from webhook.test_server import VALID_REVIEW, WebhookProcess, post, verdict

Pair = tuple[Path, Path]
Start = Callable[..., WebhookProcess]
UNAUTHENTICATED_METRIC = 'dra_agent_webhook_reviews_total{result="unauthenticated"}'


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "tls")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def start(secret: Secret, authority: Authority, tmp_path: Path) -> Iterator[Start]:
    """Start the webhook with clients of `authority` and further arguments."""
    webhooks: list[WebhookProcess] = []

    def start_webhook(*arguments: str) -> WebhookProcess:
        webhooks.append(WebhookProcess(secret, tmp_path / "log", "--client-ca", authority.certificate, *arguments))
        return webhooks[-1]

    yield start_webhook
    for webhook in webhooks:
        if webhook.process.poll() is None:
            webhook.process.kill()
        webhook.process.wait()


def client(
    webhook: WebhookProcess, pair: Pair | None, *, max_version: ssl.TLSVersion | None = None
) -> http.client.HTTPSConnection:
    context = webhook.secret.trusted()
    if max_version is not None:
        context.maximum_version = max_version
    if pair is not None:
        context.load_cert_chain(*pair)
    return webhook.connect(context)


def review(webhook: WebhookProcess, pair: Pair | None, body: bytes = VALID_REVIEW) -> tuple[int, bytes]:
    with closing(client(webhook, pair)) as connection:
        return post(connection, body)


def test_a_client_of_the_authority_gets_a_review(start: Start, authority: Authority) -> None:
    webhook = start()
    pair = authority.issue("kube-apiserver")
    for max_version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with closing(client(webhook, pair, max_version=max_version)) as connection:
            assert verdict(post(connection, VALID_REVIEW))["allowed"] is True
            assert verdict(post(connection, VALID_REVIEW))["allowed"] is True
    assert webhook.metric(UNAUTHENTICATED_METRIC) == 0


@pytest.mark.parametrize("size", [len(VALID_REVIEW), server.SMALL_BODY_BYTES * 4], ids=["small", "large"])
def test_a_client_without_a_certificate_is_refused_with_a_reason(start: Start, size: int) -> None:
    webhook = start()
    with closing(client(webhook, None)) as connection:
        connection.request("POST", "/validate", VALID_REVIEW + b" " * (size - len(VALID_REVIEW)))
        refusal = connection.getresponse()
        assert (refusal.status, refusal.read()) == (403, b"a client certificate is required and none was shown\n")
    webhook.wait_for_log('client refused reason="a client certificate is required and none was shown"')
    assert webhook.metric(UNAUTHENTICATED_METRIC) == 1
    assert webhook.metric("dra_agent_webhook_review_duration_seconds_count") == 0, "no review was made"


def test_probes_need_no_certificate(start: Start) -> None:
    webhook = start()
    for path in ("/healthz", "/readyz"):
        with closing(client(webhook, None)) as connection:
            connection.request("GET", path)
            assert connection.getresponse().read() == b"ok\n"
    assert "client refused" not in webhook.log.read_text()


def test_a_certificate_of_another_authority_fails_the_handshake(start: Start, tmp_path: Path) -> None:
    webhook = start()
    other = Authority(tmp_path / "other").issue("kube-apiserver")
    with pytest.raises(OSError, match="unknown ca"):
        review(webhook, other)
    webhook.wait_for_log("client certificate is not valid: unable to get local issuer certificate")
    assert webhook.metric(UNAUTHENTICATED_METRIC) == 1


def test_an_expired_certificate_fails_the_handshake(start: Start, authority: Authority) -> None:
    webhook = start()
    expired = authority.issue("kube-apiserver", valid=timedelta(hours=-1))
    with pytest.raises(OSError, match="certificate expired"):
        review(webhook, expired)
    webhook.wait_for_log("client certificate is not valid: certificate has expired")


def test_a_serving_certificate_is_not_a_client_certificate(start: Start, authority: Authority, tmp_path: Path) -> None:
    """One authority may issue both: the serving certificate of a kubelet must not make its node a client."""
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
        review(webhook, (serving, key))
    webhook.wait_for_log("client certificate is not valid: uns")


def test_only_a_client_with_an_allowed_name_gets_a_review(start: Start, authority: Authority) -> None:
    webhook = start("--client-name", "kube-apiserver", "--client-name", "konnectivity")
    assert verdict(review(webhook, authority.issue("kube-apiserver")))["allowed"] is True
    hostile = authority.issue("kube-apiserver2\x1b[31m")
    refused = review(webhook, hostile)
    assert refused == (403, b"the client certificate is of kube-apiserver2\\x1b[31m, which is not an allowed name\n")
    assert "\x1b" not in webhook.log.read_text()


def test_every_refusal_is_counted_and_few_are_logged(start: Start) -> None:
    webhook = start()
    for _ in range(20):
        assert review(webhook, None)[0] == 403
    assert webhook.metric(UNAUTHENTICATED_METRIC) == 20
    assert webhook.log.read_text().count("client refused") == 1


def test_a_replaced_authority_applies_to_open_connections(start: Start, authority: Authority, tmp_path: Path) -> None:
    webhook = start()
    new = Authority(tmp_path / "new")
    before, after = authority.issue("kube-apiserver"), new.issue("kube-apiserver")
    with closing(client(webhook, before)) as open_connection:
        assert verdict(post(open_connection, VALID_REVIEW))["allowed"] is True
        new.certificate.replace(authority.certificate)
        webhook.wait_for_log("certificate replaced")
        with pytest.raises((OSError, http.client.HTTPException)):
            post(open_connection, VALID_REVIEW)
            pytest.fail("a client of the previous authority still gets reviews")
    with pytest.raises(OSError, match="unknown ca"):
        review(webhook, before)
    assert verdict(review(webhook, after))["allowed"] is True


@pytest.mark.parametrize("max_version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_of_a_previous_authority_is_not_resumed(
    max_version: ssl.TLSVersion, start: Start, authority: Authority, tmp_path: Path
) -> None:
    webhook = start()
    context = webhook.secret.trusted()
    context.maximum_version = max_version
    context.load_cert_chain(*authority.issue("kube-apiserver"))

    def probe(session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", webhook.port), timeout=120) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
        ):
            tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert tls.recv(4096).startswith(b"HTTP/1.1 200")
            return tls.session_reused is True, tls.session

    session = probe(None)[1]
    assert session is not None and probe(session)[0], "sessions are resumed while the authority is the same"
    session = probe(None)[1]
    Authority(tmp_path / "new").certificate.replace(authority.certificate)
    webhook.wait_for_log("certificate replaced")
    with pytest.raises(OSError, match="unknown ca"):
        probe(session)


def test_an_unusable_authority_file_changes_nothing(start: Start, authority: Authority) -> None:
    webhook = start()
    pair = authority.issue("kube-apiserver")
    valid = authority.certificate.read_bytes()
    authority.certificate.write_bytes(b"no certificate\n")
    webhook.wait_for_log("the new certificate cannot be used")
    assert webhook.metric("dra_agent_webhook_certificate_unusable") == 1
    assert verdict(review(webhook, pair))["allowed"] is True
    assert review(webhook, None)[0] == 403
    authority.certificate.write_bytes(valid)


def test_a_certificate_that_expires_during_a_connection_is_refused() -> None:
    class Connection(ssl.SSLObject):
        """The certificate that OpenSSL verified at the handshake."""

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
    process = preloaded.run(["webhook", "--listen", "127.0.0.1:0", *map(str, arguments)])
    return process.returncode, process.stderr


@pytest.mark.parametrize("flag", ["--tls-cert", "--tls-key", "--client-ca"])
def test_unreadable_files_are_refused_at_startup(
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
        (
            empty,
            {"--tls-cert": "no PEM certificate", "--tls-key": "no PEM key", "--client-ca": "give a PEM bundle"}[flag],
        ),
    ):
        code, output = run(*(part for name, file in {**files, flag: path}.items() for part in (name, file)))
        assert code == 2 and reason in output and str(path) in output, f"{path}: {output}"
        assert "Traceback" not in output


def test_client_names_without_an_authority_are_a_usage_error(secret: Secret) -> None:
    code, output = run("--tls-cert", secret.certificate, "--tls-key", secret.key, "--client-name", "kube-apiserver")
    assert code == 2 and "--client-name" in output and "--client-ca" in output


def test_without_an_authority_no_certificate_is_required(secret: Secret, tmp_path: Path) -> None:
    webhook = WebhookProcess(secret, tmp_path / "log")
    try:
        assert json.loads(review(webhook, None)[1])["response"]["allowed"] is True
    finally:
        webhook.process.kill()
        webhook.process.wait()
