from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from doctor.conftest import Findings, Programs
from dra_agent.doctor import CheckContext, CommandResult, CommandRunner, Severity, run_checks
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from eventually import DEADLINE_S

needs_other_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")


def spec(kind: str = "vendor.com/gpu", *names: str) -> str:
    edits = {"deviceNodes": [{"path": "/dev/null"}]}
    devices = [{"name": name, "containerEdits": edits} for name in names or ("0",)]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})


def hold(state_dir: Path, uid: str = "11111111-2222-3333-4444-555555555555", device: str = "gpu-0") -> str:
    with JournalLedger(state_dir, "boot") as ledger:
        held = HeldDevice(pool="node/gpu", device=device, request="gpu")
        ledger.start(LedgerEntry(uid, "default", "claim", (held,)), durable=True)
        ledger.complete(uid, {})
    return uid


# --- CDI


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", "{", "refuse"),
        ("a.json", "", "refuse"),
        ("a.yaml", "kind: [", "refuse"),
        ("a.json", '{"cdiVersion": "9.9.9", "kind": "v.com/c", "devices": []}', "refuse"),
    ],
)
def test_a_bad_spec_is_named_with_the_reason(
    healthy_host: CheckContext, findings: Findings, name: str, content: str, reason: str
) -> None:
    (healthy_host.cdi_dir / name).write_text(content)
    found = findings(healthy_host)
    assert found and {finding.where for finding in found} == {str(healthy_host.cdi_dir / name)}
    assert all(reason in finding.message and finding.severity is Severity.PROBLEM for finding in found)


def test_a_device_defined_twice_names_both_files(healthy_host: CheckContext, findings: Findings) -> None:
    for name in ("a.json", "b.json"):
        (healthy_host.cdi_dir / name).write_text(spec())
    (finding,) = findings(healthy_host)
    assert "vendor.com/gpu=0" in finding.message
    assert "a.json" in finding.where and "b.json" in finding.where


def test_a_later_directory_may_redefine_a_device(healthy_host: CheckContext, findings: Findings) -> None:
    for directory in healthy_host.runtime_dirs:
        (directory / "a.json").write_text(spec())
    assert findings(healthy_host) == []


def test_a_file_that_some_runtimes_read_is_not_to_be_removed(healthy_host: CheckContext, findings: Findings) -> None:
    (healthy_host.cdi_dir / "a.json").write_text(spec().replace("kind", "Kind"))
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.WARNING and "remove" not in finding.hint
    assert "runtimes with CDI 1.1 refuse it" in finding.message


def test_the_cdi_directory_must_be_readable_by_all_and_writable_by_few(
    healthy_host: CheckContext, findings: Findings
) -> None:
    healthy_host.cdi_dir.chmod(0o700)
    assert ["rootless" in finding.message for finding in findings(healthy_host)] == [True]
    healthy_host.cdi_dir.chmod(0o777)
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.PROBLEM and finding.hint == f"chmod 755 {healthy_host.cdi_dir}"


def test_a_file_in_place_of_the_cdi_directory_is_a_problem(healthy_host: CheckContext, findings: Findings) -> None:
    healthy_host.cdi_dir.rmdir()
    healthy_host.cdi_dir.write_text("")
    assert any(f.where == str(healthy_host.cdi_dir) and f.severity is Severity.PROBLEM for f in findings(healthy_host))


def test_a_missing_cdi_directory_is_made_by_the_agent(healthy_host: CheckContext, findings: Findings) -> None:
    healthy_host.cdi_dir.rmdir()
    assert findings(healthy_host) == []


def test_a_directory_that_runtimes_do_not_read_is_a_warning(
    healthy_host: CheckContext, tmp_path: Path, findings: Findings
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    healthy_host.cdi_dir = tmp_path / "elsewhere"
    assert [finding.where for finding in findings(healthy_host)] == [str(tmp_path / "elsewhere")]


def test_a_spec_of_a_claim_that_holds_nothing_is_stale(healthy_host: CheckContext, findings: Findings) -> None:
    stale = healthy_host.cdi_dir / f"{healthy_host.driver}-claim_11111111-aaaa.json"
    stale.write_text(spec(f"{healthy_host.driver}/claim", "11111111-aaaa-gpu-0"))
    (finding,) = findings(healthy_host)
    assert (finding.severity, finding.where) == (Severity.WARNING, str(stale))


def test_a_held_claim_without_a_spec_is_a_problem(healthy_host: CheckContext, findings: Findings) -> None:
    uid = hold(healthy_host.state_dir)
    (finding,) = findings(healthy_host)
    assert (finding.severity, finding.where) == (Severity.PROBLEM, f"claim {uid}")
    (healthy_host.cdi_dir / f"{healthy_host.driver}-claim_{uid}.json").write_text(
        spec(f"{healthy_host.driver}/claim", f"{uid}-gpu-0")
    )
    assert findings(healthy_host) == []


# --- state


def test_the_ledger_of_a_running_agent_is_read_and_not_changed(healthy_host: CheckContext, findings: Findings) -> None:
    uid = hold(healthy_host.state_dir)
    (healthy_host.cdi_dir / f"{healthy_host.driver}-claim_{uid}.json").write_text(
        spec(f"{healthy_host.driver}/claim", f"{uid}-gpu-0")
    )
    with JournalLedger(healthy_host.state_dir, "boot"):
        before = {path.name: path.read_bytes() for path in (healthy_host.state_dir / "ledger").iterdir()}
        assert findings(healthy_host) == []
        assert {path.name: path.read_bytes() for path in (healthy_host.state_dir / "ledger").iterdir()} == before


def test_a_damaged_ledger_is_a_problem_and_stays_as_it_is(healthy_host: CheckContext, findings: Findings) -> None:
    for number in range(4):
        hold(healthy_host.state_dir, f"claim-{number}", f"gpu-{number}")
    files = (healthy_host.state_dir / "ledger").iterdir()
    journal = next(path for path in files if path.is_file() and b"claim-1" in path.read_bytes())
    data = bytearray(journal.read_bytes())
    data[data.index(b"claim-1") + 3] ^= 0xFF
    journal.write_bytes(data)
    found = [finding for finding in findings(healthy_host) if finding.check == "state"]
    assert found and found[0].severity is Severity.PROBLEM
    assert journal.read_bytes() == bytes(data)


def test_a_state_directory_that_others_can_write_is_a_problem(healthy_host: CheckContext, findings: Findings) -> None:
    healthy_host.state_dir.chmod(0o777)
    (finding,) = findings(healthy_host)
    assert finding.hint == f"chmod 700 {healthy_host.state_dir}"


def test_a_state_directory_that_is_a_file_is_a_problem(healthy_host: CheckContext, findings: Findings) -> None:
    healthy_host.state_dir.rmdir()
    healthy_host.state_dir.write_text("")
    assert any(
        f.where == str(healthy_host.state_dir) and f.severity is Severity.PROBLEM for f in findings(healthy_host)
    )


@needs_other_user
def test_a_state_directory_that_cannot_be_written_is_a_problem(healthy_host: CheckContext, findings: Findings) -> None:
    healthy_host.state_dir.chmod(0o500)
    assert any("cannot be written" in finding.message for finding in findings(healthy_host))


# --- permissions


def test_another_user_than_root_is_a_warning(healthy_host: CheckContext, findings: Findings) -> None:
    healthy_host.user = 1000
    assert [finding.check for finding in findings(healthy_host)] == ["permissions"]


def test_a_socket_without_a_listener_is_a_warning(healthy_host: CheckContext, findings: Findings) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(healthy_host.state_dir / "agent.sock"))
    (healthy_host.state_dir / "agent.sock").chmod(0o600)
    (finding,) = findings(healthy_host)
    assert "no agent listens" in finding.message


def test_a_socket_that_others_can_reach_is_a_problem(healthy_host: CheckContext, findings: Findings) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(healthy_host.state_dir / "agent.sock"))
        server.listen()
        (healthy_host.state_dir / "agent.sock").chmod(0o666)
        (finding,) = findings(healthy_host)
        assert "mode 666" in finding.message
        (healthy_host.state_dir / "agent.sock").chmod(0o600)
        assert findings(healthy_host) == []


# --- runtimes


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ({}, "no container runtime that knows CDI"),
        ({"podman": "podman version 3.4.4", "runc": "runc version 1.1.0"}, "3.4.4 does not support CDI"),
        ({"crio": "crio version 1.22.0", "crun": "crun version 1.8"}, "1.22.0 does not support CDI"),
        ({"dockerd": "Docker version 24.0.7, build x", "runc": "runc version 1.1.0"}, "24.0.7 does not support CDI"),
        ({"dockerd": "Docker version 27.1.1, build x", "runc": "runc version 1.1.0"}, "does not inject CDI"),
        ({"containerd": "containerd github.com/x v1.7.13 abc", "runc": "runc version 1.1.0"}, "does not inject CDI"),
        ({"podman": "podman version 4.9.3"}, "neither runc nor crun"),
        ({"podman": CommandResult(1, "Error: no policy.json"), "runc": "runc version 1.1.0"}, "Error: no policy.json"),
        (
            {"podman": CommandResult(None, "no response within 5 s"), "runc": "runc version 1.1.0"},
            "no response within",
        ),
        ({"podman": CommandResult(0, ""), "runc": "runc version 1.1.0"}, "no output"),
    ],
)
def test_runtimes_that_do_not_serve_are_named(
    healthy_host: CheckContext, findings: Findings, programs: dict[str, str | CommandResult], expected: str
) -> None:
    healthy_host.commands = Programs(**programs)
    assert any(expected in finding.message for finding in findings(healthy_host)), findings(healthy_host)


@pytest.mark.parametrize(
    ("podman", "severities"),
    [
        ("podman version 3.4.4", [Severity.PROBLEM, Severity.WARNING]),
        (CommandResult(None, "no response within 5 s"), [Severity.WARNING]),
    ],
    ids=["old", "late"],
)
def test_only_runtimes_whose_versions_are_known_are_counted_as_without_cdi(
    healthy_host: CheckContext, findings: Findings, podman: str | CommandResult, severities: list[Severity]
) -> None:
    """A loaded host answers late."""
    healthy_host.commands = Programs(podman=podman, runc="runc version 1.1.0")
    assert sorted(finding.severity for finding in findings(healthy_host)) == sorted(severities)


@pytest.mark.parametrize(
    ("programs", "containerd", "docker"),
    [
        ({"containerd": "containerd github.com/x v2.1.0 abc"}, "", ""),
        (
            {"containerd": "containerd github.com/x v1.7.13 abc"},
            '[plugins."x.v1.cri"]\nenable_cdi = true',
            "",
        ),
        ({"dockerd": "Docker version 28.3.0, build x"}, "", ""),
        ({"dockerd": "Docker version 27.1.1, build x"}, "", '{"features": {"cdi": true}}'),
        ({"crio": "crio version 1.30.2\n   commit: x"}, "not TOML [", "not JSON"),
    ],
)
def test_runtimes_with_cdi_enabled_pass(
    healthy_host: CheckContext,
    findings: Findings,
    programs: dict[str, str | CommandResult],
    containerd: str,
    docker: str,
) -> None:
    healthy_host.containerd_config.write_text(containerd)
    healthy_host.docker_config.write_text(docker)
    healthy_host.commands = Programs(runc="runc version 1.1.0", **programs)
    assert findings(healthy_host) == []


def test_programs_have_a_deadline_and_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        short.setattr("dra_agent.doctor.context.TIMEOUT_S", 0.2)
        assert CommandRunner().run(["sleep", "600"]).code is None
    # Not about time: a busy machine may take longer to start a program.
    monkeypatch.setattr("dra_agent.doctor.context.TIMEOUT_S", DEADLINE_S)
    assert CommandRunner().run(["/nowhere/at/all"]).code is None
    assert CommandRunner().run(["echo", "$HOME; false"]).output == "$HOME; false"


def test_findings_name_their_check(healthy_host: CheckContext) -> None:
    assert all(finding.check for finding in run_checks(healthy_host))
