"""A support bundle holds what a report needs, and no credential, in every state of the host."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cli.main import main
from dra_agent.doctor.bundle import Bundle, Document, Redactor, Text, write_archive
from dra_agent.doctor.bundle.directory import MAX_FILE_BYTES, read_directory
from dra_agent.host import Host
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from eventually import eventually
from preloaded import Command
from recordings.conclusions import conclusions
from unprivileged import home_for_everyone, without_root

TOP = "dra-agent-bundle/"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
PEM_LINES = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj", "MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3S")
PEM = f"-----BEGIN PRIVATE KEY-----\n{PEM_LINES[0]}\n{PEM_LINES[1]}\n-----END PRIVATE KEY-----\n"


def contents(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        members = archive.getmembers()
        assert all(member.isreg() and member.name.startswith(TOP) and ".." not in member.name for member in members)
        found = {member.name.removeprefix(TOP): archive.extractfile(member) for member in members}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def manifest(files: dict[str, str]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(files["MANIFEST.json"])
    assert {file["path"] for file in read["files"]} == set(files) - {"MANIFEST.json"}
    return read


def missing(files: dict[str, str]) -> dict[str, str]:
    return {omission["where"]: omission["reason"] for omission in manifest(files)["omitted"]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a configuration, and programs that a test plants in `bin`."""
    for name in [name for name in os.environ if name.startswith(("DRA_AGENT_", "KUBE"))]:
        monkeypatch.delenv(name)
    for name in ("bin", "cdi"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    program(tmp_path, "journalctl", "exit 1")
    return tmp_path


def program(place: Path, name: str, script: str) -> None:
    (place / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / "bin" / name).chmod(0o755)


def flags(place: Path, simulate: str = "vm-1gpu") -> list[str]:
    return ["--simulate", simulate, "--state-dir", str(place / "state"), "--cdi-dir", str(place / "cdi")]


def test_a_bundle_without_an_agent(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "bundle.tar.gz"
    assert main(["doctor", *flags(place), "--bundle", str(file)]) == 0
    printed = capsys.readouterr().out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    files = contents(file)
    assert {"version.json", "config.json", "doctor.json", "topology.json", "devices.json", "slices.json"} <= set(files)
    assert {"recording/manifest.json", "recording/tree.jsonl", "recording/nvml.jsonl"} <= set(files)
    assert json.loads(files["devices.json"])["devices"] and json.loads(files["slices.json"])["items"]
    assert any(
        row["key"] == "simulate" and row["value"] == "vm-1gpu" for row in json.loads(files["config.json"])["values"]
    )
    assert not [name for name, text in files.items() if "[removed]" in text], "nothing here is a credential"
    reasons = missing(files)
    assert "no agent responds" in reasons["agent"] and "no agent responds" in reasons["metrics"]
    assert "exit code 1" in reasons["journal"] and "simulated host" in reasons["kernel"]
    assert all(f"{where}: {reason}" in printed for where, reason in reasons.items())
    assert str(file) in printed and "without the identity" in printed
    incomplete = {part["name"] for part in manifest(files)["parts"] if not part["complete"]}
    assert {"agent", "metrics", "claims", "ledger", "journal", "kernel"} <= incomplete
    assert not incomplete & {"version", "config", "doctor", "topology", "devices", "slices", "cdi"}

    # A file that is there is never replaced.
    before = file.read_bytes()
    assert main(["doctor", *flags(place), "--bundle", str(file)]) == 1
    assert "is there already" in capsys.readouterr().err and file.read_bytes() == before
    assert main(["doctor", *flags(place), "--bundle", str(place / "nowhere" / "file")]) == 1
    assert not [path for path in place.iterdir() if path.suffix == ".tmp"]


def test_a_bundle_on_standard_output(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["doctor", *flags(place), "--bundle", "-"]) == 0
    printed = capfdbinary.readouterr()
    (place / "bundle.tar.gz").write_bytes(printed.out)
    assert {"version.json", "doctor.json", "slices.json"} <= set(contents(place / "bundle.tar.gz"))
    assert b"missing: agent: no agent responds" in printed.err and b": standard output\n" in printed.err
    assert not (place / "-").exists()
    assert main(["doctor", *flags(place), "--bundle", "-", "-o", "json"]) == 2
    assert b"standard output is the archive" in capfdbinary.readouterr().err


def test_the_recording_of_a_bundle_can_be_replayed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import dra_simulate

    identity = ["--with-identity", "-o", "json"]
    assert main(["doctor", *flags(place), "--bundle", str(place / "first.tgz"), *identity]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["identity"] is True
    first = contents(place / "first.tgz")
    for name, text in first.items():
        if name.startswith("recording/"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    assert conclusions(dra_simulate.build(str(place / "recording"), place / "again"), None)

    # A bundle of the recording, without its identity: no file has a UUID or an address of the first bundle.
    assert main(["doctor", *flags(place, str(place / "recording")), "--bundle", str(place / "second.tgz")]) == 0
    second = contents(place / "second.tgz")
    device = json.loads(first["devices.json"])["devices"][0]
    uuid = device["attributes"]["uuid"]["string"]
    assert uuid in first["recording/nvml.jsonl"] and not [name for name, text in second.items() if uuid in text]
    other = json.loads(second["devices.json"])["devices"][0]["attributes"]["uuid"]["string"]
    assert other in second["recording/nvml.jsonl"] and other in second["slices.json"]


def test_no_file_contains_a_planted_credential(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "kubeconfig token": "kubeconfig-token-4711",
        "kubeconfig password": "correct horse battery",
        "kubeconfig key": "LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCk1IY0NBUUVFSUlKY2hhcmFjdGVycwo=",
        "environment": "environment-s3cret",
        "log assignment": "log-s3cret-1",
        "log bearer": "abcdefgh.ijklmnop",
        "log JWT": JWT,
        "log key": PEM_LINES[0],
        "CDI env": "cdi token, with blanks",
        "CDI env of a YAML file": "yaml-s3cret value",
        "url": "url-s3cret",
        "bearer token": "bearer-token-s3cret",
    }
    kubeconfig = {
        "users": [
            {
                "name": "agent",
                "user": {
                    "token": planted["kubeconfig token"],
                    "password": planted["kubeconfig password"],
                    "client-key-data": planted["kubeconfig key"],
                },
            }
        ]
    }
    (place / "kubeconfig").write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("DRA_AGENT_KUBECONFIG", str(place / "kubeconfig"))
    monkeypatch.setenv("CLOUD_SECRET", planted["environment"])
    (place / "tokens").write_text(planted["bearer token"])
    monkeypatch.setenv("DRA_AGENT_METRICS_TOKEN_FILE", str(place / "tokens"))
    edits = {"env": [f"HF_TOKEN={planted['CDI env']}", "COLOR=blue"], "deviceNodes": [{"path": "/dev/null"}]}
    spec = {"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [{"name": "0", "containerEdits": edits}]}
    (place / "cdi" / "spec.json").write_text(json.dumps(spec))
    (place / "cdi" / "spec.yaml").write_text(
        f"cdiVersion: 0.5.0\nkind: v.com/nic\ndevices:\n- name: '0'\n  containerEdits:\n    env:\n"
        f"    - DB_PASSWORD={planted['CDI env of a YAML file']}\n"
    )
    (place / "cdi" / "torn.json").write_text(f'{{"env": ["HF_TOKEN={planted["CDI env"]}", "COLOR=blue')
    lines = [
        f"started with {planted['environment']} and {planted['kubeconfig token']}",
        f'request failed: token="{planted["log assignment"]}" status=403',
        f'{{"msg": "failed", "headers": "{{\\"Authorization\\": \\"Bearer {planted["log bearer"]}\\"}}"}}',
        f"Authorization: Bearer {planted['log bearer']}",
        f"sent {JWT} to https://agent:{planted['url']}@api.example/path",
        *PEM.splitlines(),
        f"refused {planted['bearer token']} of a client",
        "a line without a credential",
    ]
    (place / "log").write_text("\n".join(lines) + "\n")
    program(place, "journalctl", f"cat {place / 'log'}")
    assert main(["doctor", *flags(place, "cpu-only"), "--bundle", str(place / "bundle.tgz")]) == 0
    files = contents(place / "bundle.tgz")
    left = {f"{name}: {what}" for name, text in files.items() for what, value in planted.items() if value in text}
    assert not left
    assert "a line without a credential" in files["journal.log"] and "status=403" in files["journal.log"]
    spec_name = next(name for name in files if name.endswith("spec.json"))
    assert json.loads(files[spec_name])["devices"][0]["containerEdits"]["env"] == ["HF_TOKEN=[removed]", "COLOR=blue"]
    assert manifest(files)["credentials_removed"] is True


def test_an_invalid_configuration_is_part_of_the_bundle(place: Path) -> None:
    (place / "config.toml").write_text("no_such_key = 1\n")
    config = ["--config", str(place / "config.toml")]
    assert main(["doctor", *flags(place, "cpu-only"), *config, "--bundle", str(place / "bundle.tgz")]) == 0
    files = contents(place / "bundle.tgz")
    assert "no_such_key" in json.loads(files["config.json"])["problems"]
    assert json.loads(files["devices.json"])["devices"]


def test_a_host_that_cannot_be_scanned_has_a_bundle(place: Path) -> None:
    roots = ["--sysfs-root", str(place / "nowhere"), "--state-dir", str(place), "--cdi-dir", str(place / "cdi")]
    assert main(["doctor", *roots, "--bundle", str(place / "bundle.tgz")]) == 0
    files = contents(place / "bundle.tgz")
    assert "cannot be scanned" in missing(files)["devices"] and not json.loads(files["doctor.json"])["healthy"]


def test_a_bundle_of_a_running_agent(place: Path) -> None:
    arguments = ["run", "--standalone", *flags(place, "cpu-only"), "--metrics-address", "127.0.0.1:0"]
    with (place / "agent.log").open("wb") as log:
        agent = Command(arguments, stderr=log)
    try:
        eventually(lambda: (place / "state" / "agent.sock").exists(), "the agent does not listen")
        assert main(["doctor", *flags(place, "cpu-only"), "--bundle", str(place / "bundle.tgz")]) == 0
    finally:
        agent.terminate()
        agent.wait()
    files = contents(place / "bundle.tgz")
    assert json.loads(files["agent.json"])["pid"] == agent.pid
    assert json.loads(files["claims.json"]) == {"claims": [], "classes": []}
    assert json.loads(files["ledger.json"])["claims"] == []
    assert json.loads(files["config.json"])["running"]["standalone"] is True
    assert "dra_agent_build_info{" in files["metrics.txt"] or "process_cpu_seconds_total" in files["metrics.txt"]


def test_a_listener_on_the_metrics_port_gets_no_token(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "tokens").write_text("a-token-of-prometheus\n")
    monkeypatch.setenv("DRA_AGENT_METRICS_TOKEN_FILE", str(place / "tokens"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("DRA_AGENT_METRICS_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        assert main(["doctor", *flags(place, "cpu-only"), "--bundle", str(place / "bundle.tgz")]) == 0
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert "no agent responds" in missing(contents(place / "bundle.tgz"))["metrics"]


def test_the_ledger_of_a_bundle_names_the_claims_of_an_earlier_boot(place: Path) -> None:
    (place / "state").mkdir()
    for uid, boot in (("before", "another boot"), ("now", Host().boot_id())):
        with JournalLedger(place / "state", boot) as ledger:
            ledger.start(LedgerEntry(uid, "team", uid, (HeldDevice("node/gpu", f"gpu-{uid}", "gpu"),)), durable=True)
    assert main(["doctor", *flags(place, "cpu-only"), "--bundle", str(place / "bundle.tgz")]) == 0
    ledger_file = json.loads(contents(place / "bundle.tgz")["ledger.json"])
    assert [claim["name"] for claim in ledger_file["claims"]] == ["before", "now"]
    assert ledger_file["report"]["earlier_boot"] == ["before"]


def test_a_user_without_root_gets_a_bundle() -> None:
    with home_for_everyone() as home:
        prefix = without_root(home)
        (home / "state").mkdir()
        (home / "state").chmod(0)
        (home / "cdi").mkdir()
        roots = ["--state-dir", str(home / "state"), "--cdi-dir", str(home / "cdi"), "--simulate", "cpu-only"]
        command = [*prefix, str(home / "bin/dra-agent"), "doctor", *roots, "--bundle", str(home / "bundle.tgz")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
        assert done.returncode == 0, done.stderr
        files = contents(home / "bundle.tgz")
    assert "not run as root: files that only root can read are missing" in done.stdout
    assert manifest(files)["user"] != 0
    assert "or root" in missing(files)["claims"] and "Permission denied" in missing(files)["ledger"]


def test_only_regular_files_of_the_directory_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    (folder / "a.json").write_text("{}")
    (folder / "link.json").symlink_to(tmp_path / "outside")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo.json")
    (folder / "large.json").write_bytes(bytes(MAX_FILE_BYTES + 1))
    (tmp_path / "reached").symlink_to(folder)
    found = {file.name: file.data or file.reason for file in read_directory(tmp_path / "reached")}
    assert found.pop("a.json") == b"{}"
    assert found == {
        "link.json": "a symbolic link, which is not followed",
        "folder": "a directory, which is not entered",
        "fifo.json": "a FIFO, not a regular file",
        "large.json": "larger than 1024 KiB",
    }


def test_late_failed_and_large_parts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.doctor.bundle.collector.MAX_FILE_BYTES", 100)
    bundle = Bundle(Redactor(), None, user=1000)
    released = threading.Event()

    def late() -> Document:
        released.wait()
        return Document("late.json", {})

    def failing() -> Document:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), "/dev/gpu")

    bundle.add("late", 0.01, late)
    bundle.add("failing", 60, failing)
    bundle.add("log", 60, lambda: Text("a.log", "".join(f"line {n}\n" for n in range(1000))))
    released.set()
    write_archive(tmp_path / "bundle.tgz", bundle.pack()[1])
    files = contents(tmp_path / "bundle.tgz")
    assert missing(files) == {
        "late": "not complete within 0.01 s",
        "failing": "/dev/gpu: No such device",
        "a.log": "cut: the last 0 MiB of 8890 bytes",
    }
    assert set(files) == {"MANIFEST.json", "a.log"}
    assert files["a.log"].startswith("line ") and files["a.log"].endswith("line 999\n") and len(files["a.log"]) <= 100


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password: abc def\nname: x", "password: [removed]\nname: x"),
        ("  client-key-data: LS0tLS1C\n  user: x", "  client-key-data: [removed]\n  user: x"),
        ("token: |\n  abc\n  def\nname: x\n", "token: [removed]\nname: x\n"),
        ("password={abc", "password=[removed]"),
        ("apiKey = 'a\\'b c' # d", "apiKey = [removed]"),
        ("token: null", "token: null"),
        ("the tokens of users: 5 of 6", "the tokens of users: 5 of 6"),
    ],
)
def test_fields_with_names_of_credentials(text: str, left: str) -> None:
    assert Redactor().text(text, is_file=True) == left


SECRET = "s3cretPart0fACredential"


@pytest.mark.parametrize(
    "text",
    [
        "cloned with github_pat_11ABCDEFG0123456789_" + SECRET,
        "posted with xoxb-1234567890-1234567890123-" + SECRET,
        "posted with xapp-1-A0123456789-1234567890123-" + SECRET,
        "used sk-proj-" + SECRET + SECRET,
        "used AIza" + "SyA-1234567890" + SECRET[:21],
        "read https://account.blob.core.windows.net/c/f?sv=2022-11-02&sig=" + SECRET + "%3D&se=2027-01-01",
        "read https://bucket.s3.amazonaws.com/f?X-Amz-Algorithm=A&X-Amz-Signature=" + SECRET,
        "read https://storage.googleapis.com/b/f?GoogleAccessId=a&Signature=" + SECRET + "&Expires=1",
        "read https://host/f?access_key=" + SECRET + "&x=1",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=" + SECRET + "==;EndpointSuffix=core.windows.net",
        "SharedAccessSignature=sr=a&sig=" + SECRET,
        "DB_PASS=" + SECRET,
        "export PGPASS=" + SECRET,
        "MYSQL_PWD=" + SECRET,
        "db_pwd: " + SECRET,
        "SIGNING_KEY=" + SECRET,
        "accountKey: " + SECRET,
        '{"encryptionKey": "' + SECRET + '"}',
        "clone https://" + SECRET + "@github.com/a/b",
        "clone https://user:" + SECRET + "@github.com/a/b",
        "redis://:" + SECRET + "@host:6379/0",
        "run --db-pass " + SECRET,
        "Authorization: token " + SECRET,
        "X-Auth-Token: " + SECRET,
    ],
)
def test_credentials_of_known_forms_and_names_are_removed(text: str) -> None:
    for clean in (
        Redactor().text(text),
        Redactor().text(text, is_file=True),
        Redactor().document({"log": text})["log"],
    ):
        assert SECRET[:12] not in clean and "[removed]" in clean, clean
    assert SECRET not in str(Redactor().document(["a", text]))


@pytest.mark.parametrize(
    ("key", "is_secret"),
    [
        *(
            (name, True)
            for name in ("DB_PASS", "pgpass", "mysql_pwd", "accountKey", "signing-key", "TOKEN", "dbSecret")
        ),
        *(
            (name, False)
            for name in ("key", "keys", "bypass", "compass", "monkey", "PWD", "OLDPWD", "passes", "hotkey")
        ),
        *((name, False) for name in ("topologyKey", "key_type", "publicKey", "public_key")),
    ],
)
def test_which_names_are_those_of_credentials(key: str, is_secret: bool) -> None:
    assert (Redactor().document({key: "value-of-it"})[key] == "[removed]") is is_secret


def test_values_of_flags_and_lists_are_removed() -> None:
    hook = {"args": ["hook", "--token", "abc", "--level", "5"], "passwords": ["a", "b"]}
    clean = Redactor().document(hook)
    assert clean == {"args": ["hook", "--token", "[removed]", "--level", "5"], "passwords": ["[removed]"] * 2}
    assert Redactor().text("run --token abc --level 5") == "run --token [removed] --level 5"


@pytest.mark.parametrize(
    "text",
    [
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/enp1s0f0np0/device/driver/module/drivers",
        "GPU-5f1ba2c4-0d54-4b51-b8f7-2f0e9b2f6f0a 0000:3b:00.0 nvidia 570.86.15",
        "MODALIAS=pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        "basic checks passed; the bearer of a claim",
        "PWD=/root bypass=1 topologyKey: kubernetes.io/hostname",
        "git@github.com:a/b and https://host/@scope/name and user@host.example",
        "signal=9 signature of the kernel module: none; design=2",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_a_key_whose_first_line_was_cut_off_is_removed() -> None:
    rest = Redactor().text(PEM.partition("\n")[2])
    assert PEM_LINES[0] not in rest


@pytest.mark.parametrize("text", ["token" * 200_000, '"token' * 100_000, "a_-." * 100_000, "token" + " " * 500_000])
def test_a_long_line_takes_linear_time(text: str) -> None:
    # A quadratic search would reach pytest's timeout.
    assert Redactor().text(text) == text
