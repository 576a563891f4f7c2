"""What is accepted as an endpoint, as resource attributes and as headers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

import pytest

from dra_agent.agent.config import Config, add_flags, load_config
from dra_agent.agent.config_keys import changed_keys, is_reloadable
from dra_agent.agent.otlp_export import claim_names_allowed
from dra_agent.errors import UsageError
from dra_agent.otlp.endpoint import Endpoint, parse_endpoint
from dra_agent.otlp.headers import MAX_HEADERS, read_headers
from dra_agent.otlp.settings import OtlpSettings
from dra_agent.telemetry.settings import TelemetrySettings


@pytest.mark.parametrize(
    ("text", "expected", "is_private"),
    [
        ("http://127.0.0.1:4318", Endpoint("127.0.0.1", 4318, False, ""), True),
        ("http://localhost:4318/", Endpoint("localhost", 4318, False, ""), True),
        ("http://[::1]:4318", Endpoint("::1", 4318, False, ""), True),
        ("http://collector:4318", Endpoint("collector", 4318, False, ""), False),
        ("https://collector.example", Endpoint("collector.example", 443, True, ""), True),
        ("https://api.example/otlp/", Endpoint("api.example", 443, True, "/otlp"), True),
        ("http://10.0.0.1", Endpoint("10.0.0.1", 80, False, ""), False),
    ],
)
def test_an_endpoint_is_split(text: str, expected: Endpoint, is_private: bool) -> None:
    found = parse_endpoint(text)
    assert found == expected and found.is_private is is_private
    assert parse_endpoint(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "collector:4318",
        "ftp://collector",
        "http://",
        "http://collector:0",
        "http://collector:66000",
        "http://collector:x",
        "http://user:secret@collector",
        "http://collector?a=b",
        "http://collector/#a",
        "http://coll ector",
        "http://collector/a b",
        "http://collector/v1/metrics",
        "https://kollektor.exämple",
        "http://collector/\r\nX: y",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text)
    assert "secret" not in str(caught.value) and caught.value.hint


def configured(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    load_config(parser.parse_args(["--config", str(file)]), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[otlp]\nendpoint = "collector"', r"config\.toml:2: otlp\.endpoint: 'collector' is not http"),
        ('[otlp]\n\nprotocol = "grpc"', r"config\.toml:3: otlp\.protocol: Invalid enum value 'grpc'"),
        ("[otlp]\ninterval = 0", r"config\.toml:2: otlp\.interval: Expected `int` >= 1"),
        ('[otlp]\nendpont = ""', r"config\.toml:2: unknown key 'endpont'; did you mean endpoint\?"),
        ('[otlp]\nclient_cert = "a"', r"config\.toml:2: otlp\.client_cert: it is set, and otlp\.client_key is not"),
        ('[otlp]\nheaders_file = ""', r"config\.toml:2: otlp\.headers_file: expected a path"),
        ('[otlp]\nattributes = { "a b" = "c" }', r"config\.toml:2: otlp\.attributes: 'a b' is not the name of"),
        ("[otlp]\nattributes = { a = 1 }", r"config\.toml:2: otlp\.attributes\.a: Expected `str`"),
        (
            '[otlp]\nendpoint = "http://a"\nmetrics = false\ntraces = false',
            r"config\.toml:2: otlp\.endpoint: there is nothing to export",
        ),
    ],
)
def test_an_error_in_the_section_has_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        configured(text, tmp_path)


def test_a_change_of_the_section_needs_a_restart(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    file = tmp_path / "config.toml"
    file.write_text('[otlp]\nendpoint = "http://a"\nattributes = { "k8s.cluster.name" = "c" }')
    one = load_config(parser.parse_args(["--config", str(file)]), {})
    file.write_text("")
    changed = changed_keys(load_config(parser.parse_args(["--config", str(file)]), {}), one)
    assert changed == ["otlp.endpoint", "otlp.attributes"]
    assert not any(map(is_reloadable, changed))


@pytest.mark.parametrize(
    ("endpoint", "labels", "expected"),
    [
        ("http://collector:4318", "auto", False),
        ("http://127.0.0.1:4318", "auto", True),
        ("https://collector:4318", "auto", True),
        ("http://collector:4318", "on", True),
        ("https://collector:4318", "off", False),
    ],
)
def test_names_of_claims_need_a_private_endpoint(
    endpoint: str, labels: Literal["auto", "on", "off"], expected: bool
) -> None:
    config = Config(otlp=OtlpSettings(endpoint=endpoint), telemetry=TelemetrySettings(claim_labels=labels))
    assert claim_names_allowed(config) is expected
    assert config.names_claims_in_metrics is (labels != "off"), "without a metrics address only the export reads them"


def test_an_open_metrics_address_keeps_names_of_claims_out_of_the_registry() -> None:
    assert not Config(metrics_address=":9464").names_claims_in_metrics
    assert Config(metrics_address="127.0.0.1:9464").names_claims_in_metrics


def test_headers_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a.b=\n\nX-Scope-OrgID:  tenant 1 \n")
    assert read_headers(file) == [("Authorization", "Bearer a.b="), ("X-Scope-OrgID", "tenant 1")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"secret", "line 1 is not a header"),
        (b"A: b\nAuthorization:\n", "line 2 is not a header"),
        (b"A b: secret", "line 1 is not a header"),
        (b"Content-Length: 5", "line 1: Content-Length cannot be set"),
        (b"host: secret", "line 1: host cannot be set"),
        ("A: sécret".encode(), "it is not ASCII text"),
        (b"A: secret\x00", "line 1 is not a header"),
        (b"A: b\n" * (MAX_HEADERS + 1), f"it has {MAX_HEADERS + 1} headers"),
        (b"A: " + b"b" * (17 << 10), "Larger than"),
    ],
)
def test_an_unusable_headers_file_is_named_without_its_content(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "headers"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_headers(file)
    assert str(file) in str(caught.value) and "secret" not in str(caught.value)
