"""The unit under a real systemd: readiness, watchdog, reload, restarts, permissions, journal, sandbox."""

from __future__ import annotations

import json
import re
from typing import Any

from eventually import eventually
from packages.conftest import CONFIG, apply_claim, specs
from packages.machine import Machine

KUBERNETES = """\
node_name = "machine"
kubeconfig = "/etc/dra-agent/kubeconfig"
simulate = "dgx-h100"
cdi_dir = "/run/cdi"
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""
"""No API server listens there."""
DROP_INS = "/run/systemd/system/dra-agent.service.d"
BLOCKABLE = "/usr/local/lib/blockable-agent"
BLOCKABLE_AGENT = """\
#!/usr/bin/python3 -I
import signal, sys, threading, time

sys.path.insert(0, "/usr/lib/dra-agent")
from dra_agent.cli.main import main

def report():
    print("another thread runs", file=sys.stderr, flush=True)

def block(*_):
    print("the event loop is blocked", file=sys.stderr, flush=True)
    threading.Thread(target=report, daemon=True).start()
    while True:
        time.sleep(3600)

# The interpreter calls the handler on the main thread, which runs the event loop.
signal.signal(signal.SIGRTMIN, block)
sys.exit(main())
"""
BLOCKABLE_DROP_IN = f"""\
[Service]
WatchdogSec=5
ExecStart=
ExecStart={BLOCKABLE} run --config /etc/dra-agent/config.toml
"""
WAIT_S = 240.0
MAX_EXPOSURE = 2.0


def test_a_started_service_serves_claims(installed: Machine) -> None:
    # Type=notify: `systemctl restart` returns when the agent is ready.
    installed.run("systemctl", "restart", "dra-agent")
    assert json.loads(installed.output("dra-agent", "claim", "list", "-o", "json")) is not None
    assert re.search(r"\d+ devices on node machine", installed.property("StatusText"))
    assert installed.property("NotifyAccess") == "main"


def test_a_restart_keeps_claims(installed: Machine) -> None:
    spec = apply_claim(installed, "restarted")
    content = installed.output("cat", f"/run/cdi/{spec}")
    installed.run("systemctl", "restart", "dra-agent")
    assert installed.output("cat", f"/run/cdi/{spec}") == content
    assert "default/restarted" in installed.output("dra-agent", "claims").replace("\n", "")
    installed.run("systemctl", "stop", "dra-agent")
    assert spec in specs(installed), "claims stay prepared while the agent is stopped"
    installed.run("systemctl", "start", "dra-agent")
    installed.run("dra-agent", "claim", "delete", "restarted")
    assert spec not in specs(installed)


def test_a_stopped_event_loop_is_killed_and_started_again(installed: Machine) -> None:
    spec = apply_claim(installed, "watched")
    installed.write("/run/systemd/system/dra-agent.service.d/watchdog.conf", "[Service]\nWatchdogSec=5\n")
    installed.run("systemctl", "daemon-reload")
    installed.run("systemctl", "restart", "dra-agent")
    former, restarts = installed.property("MainPID"), int(installed.property("NRestarts"))
    installed.run("kill", "-STOP", former)

    def replaced() -> bool:
        running = installed.property("ActiveState") == "active" and installed.property("MainPID") != former
        return running and int(installed.property("NRestarts")) > restarts

    eventually(replaced, installed.journal, within=WAIT_S)
    assert "Watchdog timeout" in installed.journal()
    installed.run("rm", "/run/systemd/system/dra-agent.service.d/watchdog.conf")
    installed.run("systemctl", "daemon-reload")
    assert spec in specs(installed)
    installed.run("dra-agent", "claim", "delete", "watched")


def test_a_blocked_event_loop_is_killed_and_started_again(installed: Machine) -> None:
    """The process runs, and its other threads do: only the loop stops, as with a call in it that never returns."""
    spec = apply_claim(installed, "blocked")
    content = installed.output("cat", f"/run/cdi/{spec}")
    installed.write(BLOCKABLE, BLOCKABLE_AGENT)
    installed.run("chmod", "755", BLOCKABLE)
    installed.write(f"{DROP_INS}/blockable.conf", BLOCKABLE_DROP_IN)
    try:
        installed.run("systemctl", "daemon-reload")
        installed.run("systemctl", "restart", "dra-agent")
        former, restarts = installed.property("MainPID"), int(installed.property("NRestarts"))
        installed.run("kill", "-s", "RTMIN", former)
        eventually(lambda: "the event loop is blocked" in installed.journal(), installed.journal, within=WAIT_S)

        def replaced() -> bool:
            running = installed.property("ActiveState") == "active" and installed.property("MainPID") != former
            return running and int(installed.property("NRestarts")) > restarts

        eventually(replaced, installed.journal, within=WAIT_S)
        assert "Watchdog timeout" in installed.journal()
        assert "another thread runs" in installed.journal()
    finally:
        installed.run("rm", f"{DROP_INS}/blockable.conf")
        installed.run("systemctl", "daemon-reload")
        installed.run("systemctl", "restart", "dra-agent")
    assert installed.output("cat", f"/run/cdi/{spec}") == content
    assert "default/blocked" in installed.output("dra-agent", "claims").replace("\n", "")
    installed.run("dra-agent", "claim", "delete", "blocked")
    assert spec not in specs(installed)


def test_a_reload_applies_the_configuration_without_a_restart(installed: Machine) -> None:
    process = installed.property("MainPID")
    installed.write("/etc/dra-agent/config.toml", CONFIG + 'log_level = "debug"\n')
    installed.run("systemctl", "reload", "dra-agent")
    eventually(lambda: "log_level" in installed.journal(), installed.journal, within=WAIT_S)
    installed.write("/etc/dra-agent/config.toml", CONFIG)
    installed.run("systemctl", "reload", "dra-agent")
    # The agent announces the end of a reload, for which `systemctl reload` of this systemd does not wait.
    eventually(lambda: installed.property("ActiveState") == "active", installed.journal, within=WAIT_S)
    assert installed.property("MainPID") == process


def test_a_stop_during_a_reclaim_notice_ends_within_its_limit(installed: Machine) -> None:
    installed.run("systemctl", "restart", "dra-agent")
    spec = apply_claim(installed, "reclaimed")
    installed.run("dra-agent", "reclaim", "start", "--in", "600", "--why", "test")
    installed.run("systemctl", "stop", "dra-agent")
    assert installed.property("ActiveState") == "inactive"
    assert installed.property("Result") == "success", installed.journal()
    installed.run("systemctl", "start", "dra-agent")
    installed.run("dra-agent", "reclaim", "cancel")
    installed.run("dra-agent", "claim", "delete", "reclaimed")
    assert spec not in specs(installed)


def test_an_invalid_configuration_is_not_started_again(installed: Machine) -> None:
    installed.write("/etc/dra-agent/config.toml", "no_such_key = 1\n")
    try:
        assert installed.run("systemctl", "restart", "dra-agent", check=False).returncode != 0
        assert installed.property("ActiveState") == "failed"
        assert installed.property("ExecMainStatus") == "2"
        assert "no_such_key" in installed.journal()
    finally:
        installed.write("/etc/dra-agent/config.toml", CONFIG)
        installed.run("systemctl", "reset-failed", "dra-agent")
        installed.run("systemctl", "start", "dra-agent")


def test_only_root_reaches_sockets_and_state(installed: Machine) -> None:
    assert installed.output("stat", "-c", "%a %U", "/var/lib/dra-agent") == "700 root"
    for name in ("agent.sock", "reclaim.sock"):
        assert installed.output("stat", "-c", "%a %U", f"/var/lib/dra-agent/{name}") == "600 root"
    denied = installed.run("setpriv", "--reuid=65534", "--clear-groups", "dra-agent", "claim", "list", check=False)
    assert denied.returncode != 0 and "Traceback" not in denied.stderr


def test_messages_have_their_priority_in_the_journal(installed: Machine) -> None:
    installed.run("systemctl", "restart", "dra-agent")
    lines = installed.output("journalctl", "--output=json", "--unit=dra-agent.service", "_COMM=dra-agent").splitlines()
    entries = [json.loads(line) for line in lines]
    ready = [entry for entry in entries if str(entry["MESSAGE"]).startswith("ready ")]
    assert ready and {entry["PRIORITY"] for entry in ready} == {"6"}
    assert {entry["SYSLOG_IDENTIFIER"] for entry in entries} == {"dra-agent"}


def test_fields_of_messages_are_in_the_journal(installed: Machine) -> None:
    installed.write("/etc/dra-agent/config.toml", CONFIG + 'log_format = "json"\n')
    installed.run("systemctl", "restart", "dra-agent")
    spec = apply_claim(installed, "logged")
    installed.write("/etc/dra-agent/config.toml", "no_such_key = 1\n")
    try:
        assert installed.run("systemctl", "reload", "dra-agent", check=False).returncode != 0
        installed.run("systemctl", "kill", "--signal=HUP", "dra-agent")
        eventually(lambda: "not reloaded" in installed.journal(), installed.journal, within=WAIT_S)
        entries = entries_of_this_run(installed)
        ((prepared, event),) = [one for one in entries if one[1]["message"] == "claim prepared"]
        assert event["claim"] in spec and len(event["devices"]) == 1 and event["level"] == "info"
        assert prepared["SYSLOG_IDENTIFIER"] == "dra-agent" and prepared["_SYSTEMD_UNIT"] == "dra-agent.service"
        refused = [event for _, event in entries if "not reloaded" in event["message"]]
        assert refused[0]["level"] == "error" and "no_such_key" in json.dumps(refused[0]["reason"])
        # `journalctl -p err` shows the line.
        assert {"info": "6", "error": "3"}.items() <= {
            event["level"]: entry["PRIORITY"] for entry, event in entries
        }.items()
    finally:
        installed.write("/etc/dra-agent/config.toml", CONFIG)
        installed.run("systemctl", "restart", "dra-agent")
        installed.run("dra-agent", "claim", "delete", "logged")


def entries_of_this_run(machine: Machine) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Return the agent's own entries of the journal since its last start, each with the JSON object that it logged."""
    run = f"_SYSTEMD_INVOCATION_ID={machine.property('InvocationID')}"
    process = f"_PID={machine.property('MainPID')}"  # and not the check of the configuration before a reload
    lines = machine.output("journalctl", "--output=json", run, process, "_COMM=dra-agent").splitlines()
    entries = [json.loads(line) for line in lines]
    return [(entry, json.loads(entry["MESSAGE"])) for entry in entries]


def test_the_sandbox_is_applied(installed: Machine) -> None:
    process = installed.property("MainPID")
    status = dict(
        line.split(":\t", 1)
        for line in installed.output("cat", f"/proc/{process}/status").splitlines()
        if ":\t" in line
    )
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    mounts = [line.split() for line in installed.output("cat", f"/proc/{process}/mounts").splitlines()]
    # The last mount at a path is the visible one.
    options = {fields[1]: set(fields[3].split(",")) for fields in mounts}
    for path in ("/", "/sys", "/sys/fs/cgroup", "/proc/sys", "/home", "/root"):
        assert "ro" in options[path], path
    for path in ("/run/cdi", "/run/dra-agent", "/var/lib/dra-agent", "/tmp"):
        assert "rw" in options[path], path
    assert "hidepid=invisible" in options["/proc"]
    shown = installed.output("systemd-analyze", "security", "--no-pager", "dra-agent")
    level = re.search(r"exposure level for dra-agent.service: ([0-9.]+)", shown)
    assert level and float(level[1]) <= MAX_EXPOSURE


def test_the_kubelets_directories_are_writable_before_the_kubelet_has_ever_run(installed: Machine) -> None:
    drop_in = "/etc/systemd/system/dra-agent.service.d/kubernetes.conf"
    directories = ["/var/lib/kubelet", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry"]
    assert installed.run("test", "-e", directories[0], check=False).returncode == 1
    installed.run("install", "-D", "-m", "0644", "/usr/share/doc/dra-agent/examples/kubernetes.conf", drop_in)
    installed.write("/etc/dra-agent/kubeconfig", KUBECONFIG)
    installed.write("/etc/dra-agent/config.toml", KUBERNETES)
    sockets = (f"{directories[1]}/dra-agent.internal/dra.sock", f"{directories[2]}/dra-agent.internal-reg.sock")

    def listens() -> bool:
        return all(installed.run("test", "-S", path, check=False).returncode == 0 for path in sockets)

    try:
        installed.run("systemctl", "daemon-reload")
        # The agent waits for the API server, which does not exist, and the sockets do not.
        installed.run("systemctl", "--no-block", "restart", "dra-agent")
        eventually(listens, installed.journal, within=WAIT_S)
        assert installed.output("stat", "-c", "%a %U", *directories).splitlines() == ["750 root"] * 3
    finally:
        installed.run("systemctl", "stop", "dra-agent")
        installed.run("rm", "-r", drop_in, *directories[:1])
        installed.write("/etc/dra-agent/config.toml", CONFIG)
        installed.run("systemctl", "daemon-reload")
        installed.run("systemctl", "start", "dra-agent")


def test_a_running_service_has_the_limits_of_the_unit(installed: Machine) -> None:
    assert installed.property("MemoryMax") == str(512 << 20)
    assert installed.property("TasksMax") == "4096"
    status = installed.output("cat", f"/proc/{installed.property('MainPID')}/status")
    used = dict(re.findall(r"^(VmHWM|Threads):\s+(\d+)", status, re.MULTILINE))
    assert 0 < int(used["VmHWM"]) << 10 < (512 << 20) / 2
    assert 0 < int(used["Threads"]) < 4096 / 2
