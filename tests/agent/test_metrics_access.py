"""TLS and bearer tokens of /metrics: files that are replaced, clients that are refused, and errors at the start."""

from __future__ import annotations

import http.client
import json
import logging
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from dra_agent import bounded_http
from dra_agent.agent.config import Config
from dra_agent.bearer_tokens import MAX_TOKENS, BearerTokens
from dra_agent.errors import UsageError
from dra_agent.metrics.access import EndpointAccess
from dra_agent.metrics.http_server import HttpServer
from dra_agent.telemetry.settings import TelemetrySettings
from eventually import DEADLINE_S, eventually
from tls_secret import Secret

from .conftest import Start

TOKEN, OTHER_TOKEN = "first-token-of-a-client", "other-token-of-a-client"
METRICS = b"dra_agent_registered 1.0\n"


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "tls")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n")
    return file


Serve = Callable[..., HttpServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[HttpServer] = []

    def start(secret: Secret | None = None, tokens: Path | None = None) -> HttpServer:
        certificate, key = (None, None) if secret is None else (secret.certificate, secret.key)
        server = HttpServer(
            ("127.0.0.1", 0),
            render=lambda accept: (METRICS, "text/plain; version=0.0.4"),
            healthy=list,
            ready=list,
            access=EndpointAccess(certificate, key, tokens),
        )
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


def get(
    server: HttpServer, path: str = "/metrics", token: str | None = None, trusted: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
        if trusted is None
        else http.client.HTTPSConnection("127.0.0.1", server.port, timeout=DEADLINE_S, context=trusted)
    )
    with closing(connection):
        connection.request("GET", path, headers={} if token is None else {"Authorization": token})
        response = connection.getresponse()
        return response.status, response.read()


def test_metrics_require_a_token_and_probes_do_not(serve: Serve, token_file: Path) -> None:
    server = serve(tokens=token_file)
    assert get(server, token=f"Bearer {TOKEN}") == (200, METRICS)
    assert get(server, token=f"bearer  {TOKEN} ")[0] == 200, "RFC 9110: the scheme has no case"
    for wrong in (None, "", TOKEN, "Bearer", f"Bearer {OTHER_TOKEN}", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}"):
        assert get(server, token=wrong) == (401, b"a bearer token is required\n"), wrong
    assert [get(server, path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": "Bearer \xff"})
        response = connection.getresponse()
        assert (response.status, response.getheader("WWW-Authenticate")) == (401, "Bearer")


def test_tokens_change_with_their_file(
    serve: Serve, token_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(tokens=token_file)

    def replace(content: str) -> list[int]:
        (tmp_path / "new").write_text(content)
        (tmp_path / "new").rename(token_file)
        return [get(server, token=f"Bearer {token}")[0] for token in (TOKEN, OTHER_TOKEN)]

    assert replace(f"\n{TOKEN}\n {OTHER_TOKEN}\r\n") == [200, 200]
    assert replace(OTHER_TOKEN) == [401, 200]
    with caplog.at_level(logging.ERROR, "dra_agent"):
        assert replace("") == [401, 200], "an incomplete file changes nothing"
        token_file.unlink()
        assert [get(server, token=f"Bearer {token}")[0] for token in (TOKEN, OTHER_TOKEN)] == [401, 200]
    assert [record.reason for record in caplog.records] == [  # type: ignore[attr-defined]
        "metrics_token_file: it has no token",
        "metrics_token_file: No such file or directory",
    ], "each reason once"
    assert replace(TOKEN) == [200, 401]


def test_a_replaced_certificate_is_shown_to_the_next_client(serve: Serve, secret: Secret) -> None:
    server, old = serve(secret), secret.trusted()
    assert get(server, trusted=old) == (200, METRICS)
    secret.renew(secret.certificate.read_bytes())
    assert get(server, trusted=old)[0] == 200, "a pair that does not match changes nothing"
    secret.renew()
    assert [get(server, path, trusted=secret.trusted())[0] for path in ("/metrics", "/healthz")] == [200, 200]
    with pytest.raises(ssl.SSLCertVerificationError):
        get(server, trusted=old)


def test_clients_without_tls_get_nothing_and_delay_no_other(serve: Serve, secret: Secret) -> None:
    server = serve(secret)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) for _ in range(3)]
    try:
        silent[0].sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert METRICS not in silent[0].recv(4096)
        assert get(server, trusted=secret.trusted())[0] == 200
    finally:
        for connection in silent:
            connection.close()


def test_a_handshake_has_a_deadline(serve: Serve, secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 0.5)
    server = serve(secret)
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")  # the start of a ClientHello
        assert connection.recv(1) == b"", "closed"


def test_one_connection_too_many_closes_the_oldest_handshake(
    serve: Serve, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 10 * DEADLINE_S)
    server = serve(secret)
    connections = [
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        for _ in range(bounded_http.MAX_PER_ADDRESS)
    ]
    try:
        assert get(server, trusted=secret.trusted())[0] == 200
        assert connections[0].recv(1) == b"", "closed"
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it has no token"),
        ("\n \n", "it has no token"),
        (f"{TOKEN}\nshort\n", "line 2 is not a token"),
        ("two words that are long\n", "line 1 is not a token"),
        (f"{TOKEN}\n" * (MAX_TOKENS + 1), f"it has {MAX_TOKENS + 1} tokens, and {MAX_TOKENS} are possible"),
        (TOKEN * 10_000, "Larger than 65536 bytes"),
    ],
)
def test_a_file_without_usable_tokens_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(content)
    with pytest.raises(UsageError) as refused:
        BearerTokens(file, setting="metrics_token_file")
    assert str(refused.value).startswith(f"metrics_token_file ({file}): {reason}; write a token of at least 16 letters")


def test_a_file_that_cannot_be_used_ends_the_start_with_one_message(
    start: Start, secret: Secret, token_file: Path, tmp_path: Path
) -> None:
    other, garbage = Secret(tmp_path / "other"), tmp_path / "garbage"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\nPRIVATE KEY-----\n")
    files = {
        "metrics_tls_cert": secret.certificate,
        "metrics_tls_key": secret.key,
        "metrics_token_file": token_file,
    }
    cases = [
        ("metrics_tls_cert", tmp_path / "none", "No such file or directory; give a PEM certificate"),
        ("metrics_tls_cert", token_file, "it has no PEM certificate; give a PEM certificate"),
        ("metrics_tls_cert", garbage, ""),
        ("metrics_tls_key", secret.certificate, "it has no PEM key; give the PEM key of the certificate"),
        ("metrics_tls_key", other.key, "key values mismatch; give the PEM key of the certificate"),
        ("metrics_tls_key", garbage, ""),
        ("metrics_token_file", tmp_path, "Is a directory, not a regular file; write a token"),
    ]
    for key, file, message in cases:
        flags = [
            part for name, path in (files | {key: file}).items() for part in (f"--{name.replace('_', '-')}", str(path))
        ]
        agent = start("--metrics-address", "127.0.0.1:0", *flags)
        assert agent.process.wait(DEADLINE_S) == 2, agent.log_text()
        (line,) = [line for line in agent.log_text().splitlines() if key in line]
        assert line.startswith(f"dra-agent: {key} ({file}): {message}") and "Traceback" not in agent.log_text()


@pytest.mark.parametrize(("one", "other"), [("cert", "key"), ("key", "cert")])
def test_a_certificate_without_its_key_is_a_problem_of_the_configuration(
    start: Start, secret: Secret, one: str, other: str
) -> None:
    agent = start("--metrics-address", "127.0.0.1:0", f"--metrics-tls-{one}", str(secret.key))
    assert agent.process.wait(DEADLINE_S) == 2
    assert agent.log_text() == (
        f"dra-agent: --metrics-tls-{one}: it is set, and metrics_tls_{other} is not; set both for TLS, or none\n"
    )


def test_an_agent_with_tls_and_a_token(start: Start, secret: Secret, token_file: Path) -> None:
    agent = start(
        *("--metrics-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0"),
        *("--metrics-tls-cert", str(secret.certificate), "--metrics-tls-key", str(secret.key)),
        *("--metrics-token-file", str(token_file)),
    ).ready()
    metrics, probes = (int(agent.wait_for(rf" {name}=(\d+)\s")[1]) for name in ("port", "probes"))

    def status(path: str, *, port: int = metrics, token: str = "", tls: bool = True) -> int:
        connection = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=secret.trusted())
            if tls
            else http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        )
        with closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status

    assert [status("/metrics", token=token) for token in (TOKEN, OTHER_TOKEN)] == [200, 401]
    eventually(lambda: status("/readyz") == 200)
    assert [status(path, port=probes, tls=False) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 404]
    assert TOKEN not in agent.log_text()


CERT, KEY, TOKENS = Path("/tls.crt"), Path("/tls.key"), Path("/tokens")


@pytest.mark.parametrize(
    ("address", "files", "is_open"),
    [
        (":9417", {}, True),
        ("127.0.0.1:9417", {}, False),
        (":9417", {"metrics_tls_cert": CERT, "metrics_tls_key": KEY}, True),
        (":9417", {"metrics_token_file": TOKENS}, True),
        (":9417", {"metrics_tls_cert": CERT, "metrics_tls_key": KEY, "metrics_token_file": TOKENS}, False),
    ],
)
def test_names_of_claims_need_a_private_address_or_tls_with_a_token(
    address: str, files: dict[str, Path], is_open: bool
) -> None:
    config = Config(
        metrics_address=address,
        metrics_tls_cert=files.get("metrics_tls_cert"),
        metrics_tls_key=files.get("metrics_tls_key"),
        metrics_token_file=files.get("metrics_token_file"),
    )
    assert config.is_metrics_address_open is is_open
    assert config.names_claims_in_metrics is not is_open
    for labels in (True, False):
        telemetry = TelemetrySettings(claim_labels="on" if labels else "off")
        assert msgspec.structs.replace(config, telemetry=telemetry).names_claims_in_metrics is labels


PROMETHEUS = shutil.which("prometheus")


@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (package prometheus)")
def test_prometheus_scrapes_with_tls_and_a_token(
    serve: Serve, secret: Secret, token_file: Path, tmp_path: Path
) -> None:
    assert PROMETHEUS is not None
    server = serve(secret, token_file)
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "- job_name: dra-agent\n"
        "  scheme: https\n"
        f"  tls_config: {{ca_file: {secret.certificate}}}\n"
        f"  authorization: {{credentials_file: {token_file}}}\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
    log = tmp_path / "prometheus.log"
    with log.open("w") as output:
        running = subprocess.Popen([PROMETHEUS, *flags], cwd=tmp_path, stdout=output, stderr=output)

    def scraped() -> bool:
        assert running.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=DEADLINE_S) as response:
                (target,) = json.load(response)["data"]["activeTargets"]
        except (OSError, ValueError):
            return False
        assert not target["lastError"], target
        return bool(target["health"] == "up")

    try:
        eventually(scraped, log.read_text)
    finally:
        running.kill()
        running.wait()
