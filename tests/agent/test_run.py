"""`dra-agent run` as a process: start, refusal, shutdown, SIGKILL and restart."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dra_agent import __version__, revision
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from eventually import eventually

from .conftest import ServiceManager, Start


def dra_agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
    return subprocess.run(
        [sys.executable, "-m", "dra_agent", *arguments], capture_output=True, text=True, timeout=120, env=variables
    )


def test_the_agent_starts_serves_and_stops_on_sigterm(start: Start, state: Path) -> None:
    agent = start("--metrics-address", "127.0.0.1:0").ready()
    assert agent.get("/healthz") == (200, "ok\n")
    assert agent.get("/readyz") == (200, "ok\n")
    assert agent.get("/nothing")[0] == 404
    assert (state / "agent.sock").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert agent.end(signal.SIGTERM) == 0
    assert "prepared claims stay prepared" in agent.log_text()
    assert "Traceback" not in agent.log_text()
    assert not (state / "agent.sock").exists()


def test_the_agent_stops_on_sigint(start: Start) -> None:
    agent = start().ready()
    assert agent.end(signal.SIGINT) == 0
    assert "Traceback" not in agent.log_text()


def test_a_second_agent_is_refused_with_the_pid_of_the_first(start: Start) -> None:
    first = start().ready()
    second = start()
    assert second.process.wait(60) == 1
    assert f"another agent (pid {first.process.pid}) runs on this state directory" in second.log_text()
    assert len(second.log_text().splitlines()) == 1
    assert first.process.poll() is None
    assert first.end() == 0


def test_after_sigkill_the_next_agent_starts_at_once(start: Start) -> None:
    agent = start().ready()
    assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    restarted = start().ready()
    assert "damaged" not in restarted.log_text()
    assert restarted.end() == 0


def test_a_half_prepared_claim_of_a_killed_agent_is_undone(start: Start, state: Path) -> None:
    with JournalLedger(state, "boot") as ledger:
        ledger.start(LedgerEntry("aaaa-1", "team", "half", (HeldDevice("node-a/gpu", "gpu-0", "gpu"),)), durable=True)
    agent = start("--metrics-address", "127.0.0.1:0").ready()
    assert "the host was restarted" in agent.log_text()
    # The agent serves first, and repairs afterwards.
    eventually(lambda: "rolled_back=1" in agent.log_text(), agent.log_text)
    assert agent.end() == 0
    with JournalLedger(state, "boot") as ledger:
        assert ledger.entries() == []


def test_a_damaged_ledger_is_quarantined_and_the_agent_starts(start: Start, state: Path) -> None:
    with JournalLedger(state, "boot") as ledger:
        ledger.start(LedgerEntry("aaaa-1", "team", "one", ()), durable=True)
    journal = next((state / "ledger").glob("journal-*"))
    data = bytearray(journal.read_bytes())
    data[30] ^= 0xFF
    journal.write_bytes(data)
    agent = start().ready()
    assert "the ledger was damaged" in agent.log_text()
    assert list((state / "ledger").glob("*.corrupt-1"))
    assert agent.end() == 0


def test_metrics_parse_and_count_the_devices(start: Start) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    agent = start("--metrics-address", "127.0.0.1:0").ready()
    status, text = agent.get("/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["dra_agent_devices"].samples
    assert {(sample.labels["family"], sample.labels["pool"]) for sample in samples} == {
        (family, f"node-a/{family}") for family in ("gpu", "nic")
    }
    assert {sample.labels["state"] for sample in samples} == {"free", "blocked", "prepared", "tainted", "unhealthy"}
    assert sum(sample.value for sample in samples) == len(families["dra_agent_device_info"].samples) > 0
    assert families["dra_agent_ledger_writable"].samples[0].value == 1
    assert families["dra_agent_prepared_claims"].samples[0].value == 0
    assert 0 <= families["dra_agent_checkpoint_age_seconds"].samples[0].value < 60
    assert {sample.labels["operation"] for sample in families["dra_agent_dra_requests"].samples} == {
        "prepare",
        "unprepare",
    }
    assert families["dra_agent_build_info"].samples[0].labels == {"version": __version__, "revision": revision.read()}
    assert families["process_resident_memory_bytes"].samples[0].value > 0


def test_memory_stays_within_its_budget(start: Start) -> None:
    agent = start("--simulate", "dgx-h100", "--metrics-address", "127.0.0.1:0", new_interpreter=True).ready()
    agent.get("/metrics")
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) / 1024 < 60


def test_the_log_is_json_where_configured(start: Start) -> None:
    agent = start("--log-format", "json")
    agent.wait_for('"message": "ready"')
    events = [json.loads(line) for line in agent.log_text().splitlines()]
    ready = next(event for event in events if event["message"] == "ready")
    assert ready["level"] == "info"
    assert ready["devices"] > 0


@pytest.mark.parametrize("insecure", [True, False])
def test_an_api_server_whose_certificate_is_not_verified_is_logged(
    start: Start, tmp_path: Path, kubelet_dir: Path, insecure: bool
) -> None:
    # Nothing listens there. The message is logged before the first request.
    cluster = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": insecure}
    kubeconfig = tmp_path / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    }
    kubeconfig.write_text(json.dumps(content))
    agent = start("--no-standalone", "--kubeconfig", str(kubeconfig), "--kubelet-dir", str(kubelet_dir))
    agent.wait_for(r"info ready|warning slices")
    message = f'server=https://127.0.0.1:1 reason="insecure-skip-tls-verify in {kubeconfig}"'
    assert (f"the certificate of the API server is not verified {message}" in agent.log_text()) == insecure


def test_a_replaced_cdi_directory_ends_the_liveness(start: Start, tmp_path: Path) -> None:
    """A pod keeps the directory that it mounted, here an open one, after the host has put another one in its place."""
    mounted, path = tmp_path / "mounted", tmp_path / "path"
    mounted.mkdir()
    handle = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path.symlink_to(f"/proc/{os.getpid()}/fd/{handle}")
        flags = ("--cdi-dir", str(path), "--metrics-address", "127.0.0.1:0")
        agent = start(*flags, patch="from dra_agent.agent import agent\nagent.CDI_REPLACED_GRACE_S = 0.0").ready()
        assert agent.get("/healthz") == (200, "ok\n")
        mounted.rmdir()
        mounted.mkdir()
        message = "the CDI directory was removed or replaced on the host since it was mounted\n"
        assert agent.get("/healthz") == (503, message)
    finally:
        os.close(handle)


def test_systemd_gets_ready_watchdog_and_stopping(start: Start, service_manager: ServiceManager) -> None:
    agent = start(environment={"NOTIFY_SOCKET": str(service_manager.path), "WATCHDOG_USEC": "300000"})
    eventually(lambda: len(service_manager.messages) >= 4, agent.log_text)
    assert service_manager.messages[0].startswith("READY=1\nSTATUS=")
    assert service_manager.messages[1:4] == ["WATCHDOG=1"] * 3
    assert agent.end() == 0
    eventually(lambda: len(service_manager.status_messages()) >= 3, agent.log_text)
    assert service_manager.status_messages()[1:] == ["STOPPING=1", "STATUS=stopped"]


def test_a_hanging_thread_does_not_prevent_a_shutdown(state: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from dra_agent.agent import device_state
        from dra_agent.cli.main import main

        def hang(*_, **__):
            print("hanging", flush=True)
            time.sleep(1000)

        device_state.DeviceState.refresh = hang
        sys.exit(main(["run", "--standalone", "--simulate", "vm-1gpu", "--state-dir", sys.argv[1]]))
    """)
    with subprocess.Popen([sys.executable, "-c", script, state], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "hanging\n"
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--simulate", "dgx-h200"], "dgx-h100", id="unknown profile"),
        pytest.param(["--no-such-flag"], "--no-such-flag", id="unknown flag"),
        pytest.param(["--log-level", "loud"], "loud", id="unknown level"),
        pytest.param(["--driver-name", "Not A Name"], "--driver-name", id="driver name"),
        pytest.param(["--metrics-address", "nowhere"], "--metrics-address", id="address"),
        pytest.param(["--config", "/does/not/exist.toml"], "/does/not/exist.toml", id="no file"),
        pytest.param(["--no-standalone", "--pod-uid", "../x"], "--pod-uid", id="pod uid"),
    ],
)
def test_a_usage_error_is_one_message_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = dra_agent("run", "--standalone", "--state-dir", str(tmp_path / "s"), *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_key_names_file_line_and_the_closest_key(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('standalone = true\nsate_dir = "/tmp"\n')
    result = dra_agent("run", "--config", str(file))
    assert result.returncode == 2
    assert f"{file}:2" in result.stderr
    assert "state_dir" in result.stderr


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = dra_agent(
            "run",
            "--standalone",
            "--simulate",
            "dgx-h100",
            "--state-dir",
            str(tmp_path / "s"),
            "--metrics-address",
            address,
        )
    assert result.returncode == 2
    assert address in result.stderr
    assert "Traceback" not in result.stderr


def test_a_state_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = dra_agent("run", "--standalone", "--state-dir", str(tmp_path / "file" / "s"))
    assert result.returncode == 1
    assert str(tmp_path / "file" / "s") in result.stderr
    assert "--state-dir" in result.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system read-only")
    folder = tmp_path / "ro"
    folder.mkdir()
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o ro,size=1m tmpfs {folder}"], capture_output=True, text=True
    )
    if result.returncode:
        pytest.skip(f"mounting is not permitted here: {result.stderr.strip()}")
    return folder


def test_a_read_only_state_directory_is_one_clear_message(read_only: Path) -> None:
    run = f"{sys.executable} -m dra_agent run --standalone --simulate vm-1gpu --state-dir {read_only}"
    script = f"mount -t tmpfs -o ro,size=1m tmpfs {read_only} && exec {run}"
    result = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "Read-only file system" in result.stderr
    assert str(read_only) in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("flags", ["", "--simulate vm-1gpu"])
def test_a_full_disk_is_one_clear_message_at_startup(read_only: Path, tmp_path: Path, flags: str) -> None:
    run = f"{sys.executable} -m dra_agent run --standalone {flags} --state-dir {read_only}/s --run-dir {tmp_path}/run"
    fill = f"dd if=/dev/zero of={read_only}/filler bs=4k 2>/dev/null"
    script = f"mount -t tmpfs -o size=1m tmpfs {read_only} && mkdir {read_only}/s; {fill}; exec {run}"
    result = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    assert str(read_only) in result.stderr
    assert "Traceback" not in result.stderr
