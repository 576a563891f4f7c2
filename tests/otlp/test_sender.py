"""Requests to a collector that works, and to those that do not: each has one clear error, within its deadline."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from dra_agent.clock import wall_now
from dra_agent.deadline import Deadline
from dra_agent.errors import UsageError
from dra_agent.otlp.endpoint import parse_endpoint
from dra_agent.otlp.sender import MAX_RESPONSE_BYTES, METRICS_PATH, Sender, SendError
from dra_agent.otlp.settings import OtlpSettings
from eventually import DEADLINE_S
from otlp.collector import Collector, Reply
from silent_address import HungLookup, address_of, resolve, silent_address
from webhook.keys import Secret

SHORT_S = 0.2


def sender(url: str, **settings: object) -> Sender:
    return Sender(parse_endpoint(url), msgspec.convert(settings, OtlpSettings, dec_hook=lambda kind, value: value))


def failure(one: Sender, timeout_s: float = DEADLINE_S) -> SendError:
    with pytest.raises(SendError) as caught:
        one.post(METRICS_PATH, b"", Deadline.of(timeout_s))
    assert str(caught.value).startswith(f"collector {one.endpoint}: ")
    return caught.value


def test_a_request_has_path_and_headers(collector: Collector, tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer one\n")
    one = sender(f"{collector.url}/base", headers_file=headers)
    collector.replies.append(Reply(body=b"x"))
    assert one.post(METRICS_PATH, b"", Deadline.of(DEADLINE_S)) == b"x"
    headers.write_text("Authorization: Bearer two\n")
    one.post(METRICS_PATH, b"", Deadline.of(DEADLINE_S))
    assert collector.paths == ["/base/v1/metrics"] * 2
    assert [sent["Authorization"] for sent in collector.headers] == ["Bearer one", "Bearer two"]
    assert collector.headers[0]["User-Agent"].startswith("dra-agent/")


def test_a_collector_is_reached_although_its_first_address_does_not_respond(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(collector.url)
    with silent_address() as silent:
        resolve(monkeypatch, "collector.example", [silent, address_of((parts.hostname, parts.port))])
        sender("http://collector.example:4318").post(METRICS_PATH, b"", Deadline.of(DEADLINE_S))
    assert collector.paths == ["/v1/metrics"]


def test_a_lookup_of_the_name_that_hangs_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = HungLookup(monkeypatch)
    one = sender("http://collector.example:4318")
    for _ in range(2):
        error = failure(one, SHORT_S)
        assert error.is_retryable and "no response within the timeout" in error.message
    assert len(lookup.calls) == 1, "a lookup that hangs is not started again"
    lookup.answered.set()


def test_a_large_request_arrives(collector: Collector) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(description="x" * (4 << 20))
    metric.name = "large"
    sender(collector.url).post(METRICS_PATH, request.SerializeToString(), Deadline.of(DEADLINE_S))
    assert collector.metrics == [request]


@pytest.mark.parametrize(
    ("status", "is_retryable", "meaning"),
    [
        (429, True, "limits the rate"),
        (502, True, ""),
        (503, True, ""),
        (504, True, ""),
        (400, False, ""),
        (401, False, "requires credentials"),
        (404, False, "no OTLP receiver"),
        (302, False, "a redirect, which is not followed"),
        (500, False, ""),
    ],
)
def test_a_status_is_an_error(collector: Collector, status: int, is_retryable: bool, meaning: str) -> None:
    collector.replies.append(Reply(status, {"Location": collector.url}))
    error = failure(sender(collector.url))
    assert error.is_retryable is is_retryable and f"returns {status}" in error.message and meaning in error.message
    assert len(collector.paths) == 1 and error.retry_after is None


@pytest.mark.parametrize(("value", "expected"), [("7", 7.0), ("0", 0.0), ("soon", None), ("-1", None), ("²", None)])
def test_retry_after_has_seconds(collector: Collector, value: str, expected: float | None) -> None:
    collector.replies.append(Reply(503, {"Retry-After": value}))
    assert failure(sender(collector.url)).retry_after == expected


def test_retry_after_has_a_date(collector: Collector) -> None:
    date = formatdate(wall_now().timestamp() + 1000, usegmt=True)
    collector.replies.append(Reply(429, {"Retry-After": date}))
    found = failure(sender(collector.url)).retry_after
    assert found is not None and 900 < found <= 1000


@pytest.mark.parametrize("reply", [Reply(hangs=True), Reply(drips=True)])
def test_a_collector_that_hangs_or_is_slow_is_left_at_the_deadline(collector: Collector, reply: Reply) -> None:
    collector.replies.append(reply)
    error = failure(sender(collector.url), SHORT_S)
    assert error.is_retryable and "no response within the timeout" in error.message


def test_a_port_without_listener_refuses() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = failure(sender(f"http://127.0.0.1:{unused.getsockname()[1]}"))
    assert error.is_retryable and "Connection refused" in error.message


def test_a_name_that_does_not_resolve_is_an_error() -> None:
    assert failure(sender("http://collector.invalid:4318")).is_retryable


def test_a_long_response_is_not_read(collector: Collector) -> None:
    collector.replies.append(Reply(body=b"x" * (MAX_RESPONSE_BYTES + 1)))
    assert "is longer than" in failure(sender(collector.url)).message


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000])
def test_what_is_not_http_is_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        import threading

        def serve() -> None:
            channel, _ = listener.accept()
            with channel:
                channel.recv(65536)
                channel.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        error = failure(sender(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        thread.join()
    assert error.is_retryable


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "tls")


Serve = Callable[..., Collector]


def server_context(secret: Secret, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secret.certificate, secret.key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def test_tls_requires_the_authority_of_the_collector(secret: Secret, tmp_path: Path) -> None:
    other = Secret(tmp_path / "other")
    collector = Collector(tls=server_context(secret))
    try:
        error = failure(sender(collector.url))
        assert error.is_retryable and "its certificate is not accepted" in error.message
        authority = tmp_path / "ca.pem"
        shutil.copy(other.certificate, authority)
        one = sender(collector.url, ca_file=authority)
        assert "its certificate is not accepted" in failure(one).message
        authority.write_bytes(secret.certificate.read_bytes() + b"\n")  # of another length, so that it is read again
        one.post(METRICS_PATH, b"", Deadline.of(DEADLINE_S))
        assert collector.paths == [METRICS_PATH]
    finally:
        collector.close()


def test_a_client_certificate_is_shown(secret: Secret, tmp_path: Path) -> None:
    own = Secret(tmp_path / "own")
    collector = Collector(tls=server_context(secret, own.certificate))
    try:
        assert failure(sender(collector.url, ca_file=secret.certificate)).is_retryable
        one = sender(collector.url, ca_file=secret.certificate, client_cert=own.certificate, client_key=own.key)
        one.post(METRICS_PATH, b"", Deadline.of(DEADLINE_S))
        assert collector.paths == [METRICS_PATH]
    finally:
        collector.close()


def test_a_collector_without_tls_is_an_error(collector: Collector) -> None:
    error = failure(sender(collector.url.replace("http:", "https:")))
    assert error.is_retryable and "no TLS connection" in error.message


@pytest.mark.parametrize("name", ["ca_file", "headers_file"])
@pytest.mark.parametrize("content", [None, "not a file of this kind"])
def test_an_unusable_file_is_named(tmp_path: Path, name: str, content: str | None) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    one = sender("https://collector.example", **{name: file})
    with pytest.raises(UsageError) as caught:
        one.check_files()
    assert str(file) in str(caught.value)


def test_a_key_that_does_not_fit_is_named(secret: Secret, tmp_path: Path) -> None:
    other = Secret(tmp_path / "other")
    with pytest.raises(UsageError, match=r"otlp\.client_cert .*key values mismatch"):
        sender("https://a", client_cert=secret.certificate, client_key=other.key).check_files()
