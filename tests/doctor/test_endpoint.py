"""The files that protect /metrics: the findings of doctor about each."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from doctor.conftest import Findings
from dra_agent.cli.main import main
from dra_agent.doctor import CheckContext, EndpointFiles, Finding, Severity, run_checks
from fake_apiserver.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text("a-token-of-prometheus\n")
    return file


def about_metrics(context: CheckContext) -> list[Finding]:
    return [finding for finding in run_checks(context) if finding.check == "metrics"]


def test_usable_files_pass(healthy_host: CheckContext, authority: Authority, tokens: Path) -> None:
    pair = authority.issue("agent", valid=timedelta(days=90))
    healthy_host.endpoint = EndpointFiles(*pair, tokens, is_loopback=False)
    certificate, token = about_metrics(healthy_host)
    assert (certificate.severity, token.severity) == (Severity.OK, Severity.OK)
    assert certificate.message.startswith("the certificate of /metrics is valid until 20")
    assert certificate.where == f"metrics_tls_cert ({pair[0]})" and token.where == str(tokens)
    healthy_host.endpoint = None
    assert about_metrics(healthy_host) == []


@pytest.mark.parametrize(
    ("valid", "severity", "message"),
    [
        (timedelta(hours=-1), Severity.PROBLEM, "clients of /metrics refuse it: certificate has expired"),
        (timedelta(days=6), Severity.WARNING, "expires at 20"),
    ],
)
def test_the_end_of_a_certificate_is_named(
    healthy_host: CheckContext,
    authority: Authority,
    findings: Findings,
    valid: timedelta,
    severity: Severity,
    message: str,
) -> None:
    pair = authority.issue("agent", valid=valid)
    healthy_host.endpoint = EndpointFiles(*pair, None, is_loopback=False)
    (finding,) = findings(healthy_host)
    assert finding.severity is severity and finding.message.startswith(message)
    assert finding.where == f"metrics_tls_cert ({pair[0]})" and "replace the certificate" in finding.hint


def test_a_wrong_file_is_named_with_its_key(
    healthy_host: CheckContext, authority: Authority, tokens: Path, tmp_path: Path, findings: Findings
) -> None:
    certificate, key = authority.issue("agent", valid=timedelta(days=90))
    _, other = authority.issue("other")
    missing = tmp_path / "missing"
    for (shown, of_shown, token_file), where, reason in (
        ((certificate, other, None), f"metrics_tls_key ({other})", "key values mismatch"),
        ((missing, key, None), f"metrics_tls_cert ({missing})", "No such file or directory"),
        ((tokens, key, None), f"metrics_tls_cert ({tokens})", "it has no PEM certificate"),
        ((certificate, key, missing), f"metrics_token_file ({missing})", "No such file or directory"),
    ):
        healthy_host.endpoint = EndpointFiles(shown, of_shown, token_file, is_loopback=True)
        (finding,) = findings(healthy_host)
        assert finding.severity is Severity.PROBLEM
        assert (finding.where, finding.message) == (where, f"protects /metrics and cannot be used: {reason}")
        assert "does not start again with this one" in finding.hint


def test_a_token_without_tls_is_a_warning_except_on_a_loopback_address(
    healthy_host: CheckContext, tokens: Path, findings: Findings
) -> None:
    healthy_host.endpoint = EndpointFiles(None, None, tokens, is_loopback=True)
    assert findings(healthy_host) == []
    healthy_host.endpoint = EndpointFiles(None, None, tokens, is_loopback=False)
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.WARNING and "without encryption" in finding.message


def test_doctor_takes_the_files_from_the_configuration(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_AGENT_METRICS_ADDRESS", ":9417")
    monkeypatch.setenv("DRA_AGENT_METRICS_TLS_CERT", str(tokens))
    monkeypatch.setenv("DRA_AGENT_METRICS_TLS_KEY", str(tokens))
    place = ["--simulate", "cpu-only", "--state-dir", str(tmp_path / "state"), "--cdi-dir", str(tmp_path)]
    assert main(["doctor", *place, "-o", "json"]) == 1
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one.get("check") == "metrics"]
    assert [one["where"] for one in found] == [f"metrics_tls_cert ({tokens})"]
