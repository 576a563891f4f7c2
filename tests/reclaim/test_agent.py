"""A real agent receives reclaim notices from a file, a socket and a metadata service."""

from __future__ import annotations

import json
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eventually import eventually
from reclaim.agent_process import Agent, Start, phases, wait_for_phases
from reclaim.metadata.aws import FakeAws


def test_a_cloud_notice_survives_sigkill_of_the_agent(start: Start, aws: FakeAws, tmp_path: Path) -> None:
    config = f'[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n'
    agent = start(config)
    assert agent.status()["phase"] == "none"
    start_time = time.monotonic()
    when = (datetime.now(UTC) + timedelta(seconds=120)).strftime("%Y-%m-%dT%H:%M:%SZ")
    aws.set(spot={"action": "terminate", "time": when})
    agent.wait_for("reclaim: notice")
    before = agent.status()
    assert before["events"][0]["source"] == "aws.spot" and before["seconds_left"] < 120
    # The service reports whole seconds, the agent tenths.
    assert before["seconds_left"] > 120 - 1.1 - (time.monotonic() - start_time)
    # The state is written to disk shortly after the log line.
    state_file = tmp_path / "s" / "reclaim.json"
    eventually(lambda: state_file.exists() and "instance-action" in state_file.read_text())
    agent.stop(signal.SIGKILL)

    aws.fail("/", status=503, times=10_000)
    restarted = start(config)
    restarted.wait_for("continue a reclaim")
    after = restarted.status()
    assert (after["phase"], after["noticed"], after["deadline"]) == ("notice", before["noticed"], before["deadline"])
    eventually(
        lambda: {source["up"] for source in restarted.status()["sources"]} == {False}, lambda: str(restarted.status())
    )


def test_an_operator_starts_and_cancels_a_reclaim(start: Start) -> None:
    agent = start("")
    start_time = time.monotonic()
    code, text = agent.command("reclaim", "start", "--in", "90", "--why", "rack 7 is moved")
    remaining = re.search(r"notice: the node is being reclaimed in (\d+) s", text)
    assert code == 0 and remaining is not None and "rack 7 is moved" in text
    assert 89 - (time.monotonic() - start_time) < int(remaining[1]) <= 90
    code, text = agent.command("reclaim", "cancel")
    assert code == 0 and "cancelled" in text
    code, text = agent.command("reclaim", "start", "--in", "soon")
    assert code == 2 and "soon is not a number of seconds between 0 and 604800, or a duration such as 90s" in text
    code, text = agent.command("reclaim", "start", "--in", "1h30m", "--yes")
    remaining = re.search(r"notice: the node is being reclaimed in (\d+) s", text)
    assert code == 0 and remaining is not None and 5400 - (time.monotonic() - start_time) < int(remaining[1]) <= 5400


def test_sigterm_is_not_a_notice(start: Start, tmp_path: Path) -> None:
    agent = start("")
    agent.stop(signal.SIGTERM)
    assert "reclaim" not in agent.log.read_text()
    assert not (tmp_path / "s" / "reclaim.json").exists() and not (tmp_path / "s" / "reclaim.sock").exists()


def test_metrics_report_the_reachability_of_sources(start: Start, aws: FakeAws) -> None:
    import urllib.request

    config = f'metrics_address = "127.0.0.1:0"\n[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n'
    start_time = time.time()
    agent = start(config)
    aws.set(autoscaling="Terminated")
    agent.wait_for("reclaim: notice")
    port = agent.wait_for(r"port=(\d+)")[1]
    text = ""

    def is_up() -> bool:
        nonlocal text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
            text = response.read().decode()
        return 'dra_agent_reclaim_source_up{source="aws.spot"} 1.0' in text

    # The notice comes from another source of the same cloud.
    eventually(is_up, lambda: text)
    assert 'dra_agent_reclaim_phase{phase="notice"} 1.0' in text and "dra_agent_reclaim_notices_total 1.0" in text
    seen = re.search(r'dra_agent_reclaim_last_poll_timestamp_seconds\{source="aws.spot"\} (\S+)', text)
    assert seen is not None and start_time - 1 < float(seen[1]) < time.time() + 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[reclaim]\nclowd = 1\n", "config.toml:2: unknown key 'clowd'; did you mean cloud?"),
        ('[reclaim]\ncloud = "oracle"\n', "config.toml:2"),
        ('[reclaim]\ncloud = "aws"\nendpoint = "https://169.254.169.254"\n', "is not http://HOST[:PORT]"),
        ("[reclaim]\nlead_seconds = 0\n", "config.toml:2"),
        ('[[reclaim.node_taints]]\nkey = "a"\nkind = "clear"\n', "config.toml"),
        ('[[reclaim.node_taints]]\nkei = "a"\n', "config.toml"),
    ],
)
def test_an_error_in_the_reclaim_section_ends_the_start(tmp_path: Path, config: str, message: str) -> None:
    agent = Agent(tmp_path, config)
    assert agent.process.wait(60) == 2
    assert message in agent.log.read_text() and "Traceback" not in agent.log.read_text()


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    script = tmp_path / "hook.py"
    script.write_text(
        # A shell starts fast, and the hook has a time limit.
        f'#!/bin/sh\nwords="$DRA_AGENT_CLAIM_NAME $DRA_AGENT_RECLAIM_SOURCE $DRA_AGENT_CLAIM_DEVICES"\n'
        f'echo "$words" >> {tmp_path}/hooked\n'
        'test "$DRA_AGENT_CLAIM_NAME" != a || exec sleep 3600\n'
    )
    script.chmod(0o700)
    return script


def test_in_standalone_mode_claims_are_released_and_reallocated(
    start: Start, tmp_path: Path, claims: Path, hook: Path
) -> None:
    config = f'[reclaim]\nhook = ["{hook}"]\nhook_seconds = 5.0\n'
    agent = start(config)
    assert agent.command("claim", "apply", "-f", str(claims))[0] == 0
    before = phases(agent)
    assert sorted(phase for phase, _ in before.values()) == ["Pending", "Prepared", "Prepared"]

    assert agent.command("reclaim", "start", "--in", "60")[0] == 0
    wait_for_phases(agent, {"Pending"})
    # One hook sleeps for an hour: it is killed at its time limit, and the release continues.
    agent.wait_for("the hook took too long and was killed")
    agent.wait_for("every claim is released")
    hooked = sorted((tmp_path / "hooked").read_text().splitlines())
    assert [line.split()[:2] for line in hooked] == [["a", "operator"], ["b", "operator"]]
    assert all("/claim=" in line for line in hooked)
    code, text = agent.command("reclaim", "status", "--watch")
    assert code == 0 and text.count("released") == 2
    assert not [path for path in (tmp_path / "cdi").iterdir() if path.suffix == ".json"]

    # An agent that starts during a notice prepares no claims.
    agent.stop(signal.SIGKILL)
    restarted = start(config)
    assert {phase for phase, _ in phases(restarted).values()} == {"Pending"}
    assert restarted.command("reclaim", "cancel")[0] == 0
    wait_for_phases(restarted, {"Pending", "Prepared"})
    eventually(lambda: phases(restarted) == before, lambda: str(phases(restarted)))


def test_after_a_reboot_claims_are_allocated_again(start: Start, tmp_path: Path, claims: Path) -> None:
    agent = start("")
    agent.command("claim", "apply", "-f", str(claims))
    before = phases(agent)
    agent.command("reclaim", "start")
    wait_for_phases(agent, {"Pending"})
    agent.stop(signal.SIGKILL)
    state = tmp_path / "s" / "reclaim.json"
    saved = json.loads(state.read_text())
    saved["state"]["boot"] = "an earlier boot"
    state.write_text(json.dumps(saved))
    restarted = start("")
    assert phases(restarted) == before


def test_a_missing_hook_does_not_block_a_release(start: Start, claims: Path) -> None:
    agent = start('[reclaim]\nhook = ["/nowhere/hook"]\n')
    agent.command("claim", "apply", "-f", str(claims))
    agent.command("reclaim", "start", "--in", "30")
    agent.wait_for("the hook cannot be run")
    agent.wait_for("every claim is released")
    wait_for_phases(agent, {"Pending"})


def test_a_stop_during_a_notice_releases_claims_first(start: Start, tmp_path: Path, claims: Path) -> None:
    script, gate = tmp_path / "slow", tmp_path / "gate"
    script.write_text(f"#!/bin/sh\nwhile ! test -e {gate}; do sleep 0.05; done\n")
    script.chmod(0o700)
    agent = start(f'[reclaim]\nhook = ["{script}"]\nhook_seconds = 600\n')
    agent.command("claim", "apply", "-f", str(claims))
    agent.command("reclaim", "start", "--in", "600")
    agent.process.send_signal(signal.SIGTERM)
    agent.wait_for("claims must be released first")
    gate.touch()
    assert agent.process.wait(60) == 0
    assert "every claim is released" in agent.log.read_text()


def test_a_stop_during_a_notice_without_a_deadline_ends_at_the_first_signal(
    start: Start, tmp_path: Path, claims: Path
) -> None:
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o700)
    patch = "from dra_agent.agent import agent; agent.STOP_LIMIT_S = 2.0"
    agent = start(f'[reclaim]\nhook = ["{script}"]\nhook_seconds = 600\n', patch=patch)
    agent.command("claim", "apply", "-f", str(claims))
    agent.command("reclaim", "start")
    agent.process.send_signal(signal.SIGTERM)
    agent.wait_for("claims must be released first")
    assert agent.process.wait(60) == 0
    assert "the stop is not delayed further" in agent.log.read_text()


def test_a_blocked_control_socket_does_not_prevent_the_start(tmp_path: Path, start: Start, aws: FakeAws) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    (tmp_path / "s" / "reclaim.sock").write_text("mine")
    agent = start(f'[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n')
    agent.wait_for("operators cannot reach the agent about a reclaim")
    aws.set(autoscaling="Terminated")
    agent.wait_for("reclaim: notice")
    agent.stop()
    assert (tmp_path / "s" / "reclaim.sock").read_text() == "mine"
