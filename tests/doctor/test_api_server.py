"""What doctor reports about the agent's kubeconfig."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.conftest import Findings
from dra_agent.cli.main import main
from dra_agent.doctor import CheckContext, Severity, run_checks


def kubeconfig(path: Path, server: str = "https://api.example.com:6443", *, insecure: bool = False) -> Path:
    cluster = {"server": server, "insecure-skip-tls-verify": insecure}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(content))
    return path


def test_a_server_whose_certificate_is_verified_passes(healthy_host: CheckContext, tmp_path: Path) -> None:
    healthy_host.kubeconfig = kubeconfig(tmp_path / "kubeconfig")
    (finding,) = [found for found in run_checks(healthy_host) if found.check == "kubeconfig"]
    assert finding.severity is Severity.OK and "https://api.example.com:6443" in finding.message


@pytest.mark.parametrize(
    ("server", "insecure", "expected"),
    [
        ("https://api.example.com:6443", True, "insecure-skip-tls-verify"),
        ("https://127.0.0.1:6443", True, "insecure-skip-tls-verify"),
        ("http://api.example.com:8080", False, "neither encrypted nor authenticated"),
        ("http://127.0.0.1:8001", True, None),
        ("http://localhost:8001", False, None),
    ],
)
def test_connections_that_others_can_read_are_a_warning(
    healthy_host: CheckContext, findings: Findings, tmp_path: Path, server: str, insecure: bool, expected: str | None
) -> None:
    path = healthy_host.kubeconfig = kubeconfig(tmp_path / "kubeconfig", server, insecure=insecure)
    found = findings(healthy_host)
    assert [(finding.severity, finding.check, finding.where) for finding in found] == (
        [] if expected is None else [(Severity.WARNING, "kubeconfig", str(path))]
    )
    assert all(expected and expected in finding.message and server in finding.message for finding in found)


def test_a_kubeconfig_that_cannot_be_used_is_a_problem(
    healthy_host: CheckContext, findings: Findings, tmp_path: Path
) -> None:
    healthy_host.kubeconfig = tmp_path / "missing"
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.PROBLEM and finding.where == str(tmp_path / "missing") and finding.hint
    healthy_host.kubeconfig.write_text("- not a kubeconfig")
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.PROBLEM and "not a kubeconfig" in finding.message


@pytest.mark.parametrize("standalone", [True, False])
def test_the_command_reads_the_kubeconfig_of_kubernetes_mode_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], standalone: bool
) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", insecure=True)
    config = tmp_path / "config.toml"
    mode = "standalone = true\n" if standalone else ""
    config.write_text(f'{mode}kubeconfig = "{path}"\nsimulate = "cpu-only"\nstate_dir = "{tmp_path / "state"}"\n')
    main(["doctor", "--config", str(config), "-o", "json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    insecure = [finding["severity"] for finding in found if finding["check"] == "kubeconfig"]
    assert insecure == ([] if standalone else ["warning"])
