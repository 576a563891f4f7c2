"""`dra-agent cdi`: output and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiers
from dra_agent.cli.main import main
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from eventually import DEADLINE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "cdi" / "examples"
VENDOR = {
    "cdiVersion": "0.3.0",
    "kind": "gpu.example.com/gpu",
    "devices": [{"name": "a", "containerEdits": {"env": ["VENDOR=1"]}}],
}
"""A spec as the toolkit of a vendor writes it."""


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    """A directory with a valid claim spec and a file of another vendor."""
    directory = tmp_path / "cdi"
    directory.mkdir()
    shutil.copy(EXAMPLES / "amd-gpu.json", directory / "dra-agent.internal-claim_uid-1.json")
    (directory / "vendor.json").write_text("{}")
    return directory


def record(state_dir: Path, *ids: str) -> None:
    """Write a ledger with one prepared claim."""
    with JournalLedger(state_dir, "boot-1") as ledger:
        payload = {"devices": [{"pool": "n/gpu", "device": "gpu-0", "requests": ["gpu"], "cdi_device_ids": list(ids)}]}
        held = (HeldDevice("n/gpu", "gpu-0", "gpu"),)
        ledger.start(LedgerEntry("uid-1", "default", "amd-gpu", held, payload=payload), durable=True)
        ledger.complete("uid-1", payload)


def test_list_shows_own_claims_only(cdi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cdi", "list", "--cdi-dir", str(cdi)]) == 0
    text = capsys.readouterr().out
    assert "default/amd-gpu" in text and "dra-agent.internal/claim=" in text and "vendor.json" not in text
    assert main(["cdi", "list", "--cdi-dir", str(cdi), "-o", "json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["uid"] == "uid-1" and entry["claim"] == "default/amd-gpu" and len(entry["cdi_device_ids"]) == 1


def test_list_of_an_empty_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cdi", "list", "--cdi-dir", str(tmp_path / "none")]) == 0
    assert "no claim of dra-agent.internal" in capsys.readouterr().out


def test_list_marks_a_spec_that_runtimes_refuse(cdi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cdi / "dra-agent.internal-claim_uid-1.json").write_text('{"cdiVersion": "9.9.9"}')
    assert main(["cdi", "list", "--cdi-dir", str(cdi)]) == 1
    assert "uid-1" in capsys.readouterr().out


def test_show_describes_the_edits_of_a_container(cdi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cdi", "show", "uid-1", "--cdi-dir", str(cdi)]) == 0
    text = capsys.readouterr().out
    assert "add device /dev/kfd (c 234:0, rw)" in text and "set DRA_AGENT_CLAIM=default/amd-gpu" in text
    assert "podman run --rm --device dra-agent.internal/claim=" in text
    assert main(["cdi", "show", "uid-1", "--cdi-dir", str(cdi), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {node["path"] for node in answer["container_edits"]["deviceNodes"]} >= {"/dev/kfd", "/dev/dri/renderD128"}


def test_ids_of_a_vendors_spec_are_those_of_the_ledger(
    cdi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spec of a claim names neither its vendor's spec nor the device there."""
    monkeypatch.setenv("DRA_AGENT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    (cdi / "vendor.json").write_text(json.dumps(VENDOR))
    assert main(["cdi", "show", "uid-1", "--cdi-dir", str(cdi), "-o", "cdi"]) == 0
    own = capsys.readouterr().out.strip()
    record(tmp_path / "state", "gpu.example.com/gpu=a", own)
    both = f"--device gpu.example.com/gpu=a --device {own}"
    for words in (("list",), ("show", "uid-1"), ("show", "default/amd-gpu")):
        assert main(["cdi", *words, "--cdi-dir", str(cdi), "-o", "flags"]) == 0
        assert capsys.readouterr().out == f"{both}\n", words
    assert main(["cdi", "show", "uid-1", "--cdi-dir", str(cdi)]) == 0
    text = capsys.readouterr().out
    assert f"podman run --rm {both} IMAGE" in text and "set VENDOR=1" in text and "set DRA_AGENT_CLAIM=" in text
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["cdi", "try", "uid-1", "--cdi-dir", str(cdi)]) == 0
    assert "set VENDOR=1" in capsys.readouterr().out


def test_the_ledger_can_be_that_of_another_state_directory(
    cdi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_AGENT_STATE_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "state").mkdir()
    (cdi / "vendor.json").write_text(json.dumps(VENDOR))
    directories = ["--cdi-dir", str(cdi), "--state-dir", str(tmp_path / "state")]
    assert main(["cdi", "show", "uid-1", *directories, "-o", "cdi"]) == 0
    own = capsys.readouterr().out.strip()
    record(tmp_path / "state", "gpu.example.com/gpu=a", own)
    for words in (("list", "-o", "cdi"), ("show", "uid-1", "-o", "cdi")):
        assert main(["cdi", *words, *directories]) == 0
        assert capsys.readouterr().out.split() == ["gpu.example.com/gpu=a", own], words
    assert main(["cdi", "try", "uid-1", *directories]) == 0
    assert "set VENDOR=1" in capsys.readouterr().out
    assert main(["cdi", "validate", *directories]) == 0
    assert str(cdi / "vendor.json") in capsys.readouterr().out


def test_ids_of_another_claim_in_the_ledger_are_not_used(
    cdi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_AGENT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    record(tmp_path / "state", "dra-agent.internal/claim=other")
    assert main(["cdi", "list", "--cdi-dir", str(cdi), "-o", "cdi"]) == 0
    assert "other" not in capsys.readouterr().out


def test_a_ledger_that_cannot_be_read_is_a_note(
    cdi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_AGENT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state/ledger").write_text("not a directory")
    assert main(["cdi", "list", "--cdi-dir", str(cdi), "-o", "cdi"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("dra-agent.internal/claim=")
    assert printed.err.startswith("note: ids of vendors' CDI specs are not known: ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("uid-2", "uid-2: no claim of this name or uid has a CDI spec in "),
        ("vendor.com/class=x", "no CDI device vendor.com/class=x"),
        ("../passwd", "../passwd: no claim of this name or uid has a CDI spec in "),
    ],
)
def test_show_of_an_unknown_name_is_one_message(
    cdi: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    assert main(["cdi", "show", name, "--cdi-dir", str(cdi)]) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_validate_names_file_and_reason(cdi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cdi / "broken.yaml").write_text("cdiVersion: 0.3.0\nkind: [\n")
    (cdi / "old.json").write_text(
        '{"cdiVersion": "0.3.0", "kind": "a/b", "annotations": {"bad key": "x"},'
        ' "devices": [{"name": "d", "containerEdits": {"env": ["A"]}}]}'
    )
    assert main(["cdi", "validate", str(cdi)]) == 1
    text = capsys.readouterr().out
    assert "broken.yaml: refused\n  line " in text
    assert "vendor.json: refused\n  Object missing required field `cdiVersion`" in text
    assert "cdiVersion: 0.3.0 is too low, the fields of the spec need 0.6.0" in text
    assert "devices[0].containerEdits.env[0]: 'A' is not NAME=VALUE" in text
    assert "dra-agent.internal-claim_uid-1.json: 1 device of dra-agent.internal/claim" in text


def test_validate_names_both_files_of_a_conflict(cdi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cdi / "vendor.json").unlink()
    shutil.copy(cdi / "dra-agent.internal-claim_uid-1.json", cdi / "copy.json")
    assert main(["cdi", "validate", str(cdi), "-o", "json"]) == 1
    (conflict,) = json.loads(capsys.readouterr().out)["conflicts"]
    assert [Path(path).name for path in conflict["files"]] == ["copy.json", "dra-agent.internal-claim_uid-1.json"]


def test_validate_valid_files_and_an_empty_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cdi", "validate", str(EXAMPLES)]) == 0
    assert main(["cdi", "validate", str(tmp_path)]) == 0
    assert "no CDI spec in" in capsys.readouterr().out


def test_validate_of_a_missing_directory_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cdi", "validate", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_try_without_a_runtime_shows_the_edits(
    cdi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["cdi", "try", "uid-1", "--cdi-dir", str(cdi)]) == 0
    text = capsys.readouterr().out
    assert "no container: " in text and "add device /dev/kfd" in text


@tiers.PROGRAMS
def test_try_reports_a_container_that_does_not_start(
    cdi: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake podman that starts containers only without devices."""
    if shutil.which("busybox") is None:
        pytest.skip("a static busybox for the container is not installed")
    podman = tmp_path / "podman"
    podman.write_text('#!/bin/sh\ncase "$*" in *--device*) echo "cannot resolve" >&2; exit 126;; esac\n')
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("dra_agent.cdi.runtime.NAMESPACE_SCRIPT", 'exec "$@"')
    unshare = tmp_path / "unshare"  # `unshare --mount CMD...` runs CMD
    unshare.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    unshare.chmod(0o755)
    assert main(["cdi", "try", "uid-1", "--cdi-dir", str(cdi)]) == 1
    error = capfd.readouterr().err
    assert "cannot resolve" in error and "podman: the container ended with status 126" in error


@pytest.mark.parametrize("name", ["pipe.json", "pipe.yaml"])
def test_validate_does_not_wait_for_a_fifo(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    command = [sys.executable, "-m", "dra_agent", "cdi", "validate", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1 and f"{name}: refused\n  cannot be read: Is a FIFO, not a regular file" in done.stdout


def test_validate_refuses_aliases_that_multiply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["cdiVersion: 0.5.0", "kind: v.com/gpu", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines) + "\n")
    assert main(["cdi", "validate", str(tmp_path)]) == 1
    assert "too many values, those of its aliases included" in capsys.readouterr().out


def test_cdi_directory_comes_from_the_configuration(
    cdi: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_AGENT_CDI_DIR", str(cdi))
    assert main(["cdi", "list"]) == 0
    assert "default/amd-gpu" in capsys.readouterr().out
    assert main(["cdi", "validate"]) == 1
    assert f"{cdi}/vendor.json: refused" in capsys.readouterr().out
