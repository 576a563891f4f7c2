"""A real agent, told by a real file, socket and metadata service that its host is taken."""

from __future__ import annotations

import json
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eventually import eventually
from reclaim.agent_process import Agent, Start, phases, settled
from reclaim.metadata.aws import FakeAws


def test_a_notice_of_a_cloud_reaches_the_agent_and_survives_its_death(
    start: Start, aws: FakeAws, tmp_path: Path
) -> None:
    config = f'[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n'
    agent = start(config)
    assert agent.status()["phase"] == "none"
    began = time.monotonic()
    when = (datetime.now(UTC) + timedelta(seconds=120)).strftime("%Y-%m-%dT%H:%M:%SZ")
    aws.set(spot={"action": "terminate", "time": when})
    agent.wait_for("reclaim: notice")
    before = agent.status()
    assert before["events"][0]["source"] == "aws.spot" and before["seconds_left"] < 120
    assert before["seconds_left"] > 120 - 1 - (time.monotonic() - began)
    # What is said at once is on disk only soon.
    kept = tmp_path / "s" / "reclaim.json"
    eventually(lambda: kept.exists() and "instance-action" in kept.read_text())
    agent.stop(signal.SIGKILL)

    aws.fail("/", status=503, times=10_000)
    again = start(config)
    again.wait_for("a reclaim goes on")
    after = again.status()
    assert (after["phase"], after["noticed"], after["deadline"]) == ("notice", before["noticed"], before["deadline"])
    eventually(lambda: {source["up"] for source in again.status()["sources"]} == {False}, lambda: str(again.status()))


def test_an_operator_says_so_by_command(start: Start) -> None:
    agent = start("")
    began = time.monotonic()
    code, text = agent.command("reclaim", "start", "--in", "90", "--why", "rack 7 is moved")
    left = re.search(r"notice: the node is being reclaimed in (\d+) s", text)
    assert code == 0 and left is not None and "rack 7 is moved" in text
    assert 89 - (time.monotonic() - began) < int(left[1]) <= 90
    code, text = agent.command("reclaim", "cancel")
    assert code == 0 and "cancelled" in text
    code, text = agent.command("reclaim", "start", "--in", "soon")
    assert code == 2 and "soon is not between 0 and a week" in text


def test_sigterm_is_no_notice(start: Start, tmp_path: Path) -> None:
    agent = start("")
    agent.stop(signal.SIGTERM)
    assert "reclaim" not in agent.log.read_text()
    assert not (tmp_path / "s" / "reclaim.json").exists() and not (tmp_path / "s" / "reclaim.sock").exists()


def test_metrics_tell_how_well_sources_are_heard(start: Start, aws: FakeAws) -> None:
    import urllib.request

    config = f'metrics_address = "127.0.0.1:0"\n[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n'
    began = time.time()
    agent = start(config)
    aws.set(autoscaling="Terminated")
    agent.wait_for("reclaim: notice")
    port = agent.wait_for(r"port=(\d+)")[1]
    text = ""

    def is_heard() -> bool:
        nonlocal text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            text = answer.read().decode()
        return 'dra_agent_reclaim_source_up{source="aws.spot"} 1.0' in text

    # The notice is another voice's.
    eventually(is_heard, lambda: text)
    assert 'dra_agent_reclaim_phase{phase="notice"} 1.0' in text and "dra_agent_reclaim_notices_total 1.0" in text
    seen = re.search(r'dra_agent_reclaim_last_poll_timestamp_seconds\{source="aws.spot"\} (\S+)', text)
    assert seen is not None and began - 1 < float(seen[1]) < time.time() + 1


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("[reclaim]\nclowd = 1\n", "config.toml:2: unknown key 'clowd'; did you mean cloud?"),
        ('[reclaim]\ncloud = "oracle"\n', "config.toml:2"),
        ('[reclaim]\ncloud = "aws"\nendpoint = "https://169.254.169.254"\n', "is not http://HOST[:PORT]"),
        ("[reclaim]\nlead_seconds = 0\n", "config.toml:2"),
        ('[[reclaim.node_taints]]\nkey = "a"\nkind = "clear"\n', "config.toml"),
        ('[[reclaim.node_taints]]\nkei = "a"\n', "config.toml"),
    ],
)
def test_a_mistake_in_the_section_ends_the_start(tmp_path: Path, config: str, complaint: str) -> None:
    agent = Agent(tmp_path, config)
    assert agent.process.wait(60) == 2
    assert complaint in agent.log.read_text() and "Traceback" not in agent.log.read_text()


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    script = tmp_path / "hook.py"
    script.write_text(
        # A shell starts in a moment: its time is limited.
        f'#!/bin/sh\nwords="$DRA_AGENT_CLAIM_NAME $DRA_AGENT_RECLAIM_SOURCE $DRA_AGENT_CLAIM_DEVICES"\n'
        f'echo "$words" >> {tmp_path}/hooked\n'
        'test "$DRA_AGENT_CLAIM_NAME" != a || exec sleep 3600\n'
    )
    script.chmod(0o700)
    return script


def test_without_kubernetes_claims_are_given_up_and_come_back(
    start: Start, tmp_path: Path, claims: Path, hook: Path
) -> None:
    config = f'[reclaim]\nhook = ["{hook}"]\nhook_seconds = 5.0\n'
    agent = start(config)
    assert agent.command("claim", "apply", "-f", str(claims))[0] == 0
    before = phases(agent)
    assert sorted(phase for phase, _ in before.values()) == ["Pending", "Prepared", "Prepared"]

    assert agent.command("reclaim", "start", "--in", "60")[0] == 0
    settled(agent, {"Pending"})
    # One hook sleeps for an hour: it is killed when its time is over, and the release goes on.
    agent.wait_for("the hook took too long and was killed")
    agent.wait_for("every claim is released")
    hooked = sorted((tmp_path / "hooked").read_text().splitlines())
    assert [line.split()[:2] for line in hooked] == [["a", "operator"], ["b", "operator"]]
    assert all("/claim=" in line for line in hooked)
    code, text = agent.command("reclaim", "status", "--watch")
    assert code == 0 and text.count("released") == 2
    assert not [path for path in (tmp_path / "cdi").iterdir() if path.suffix == ".json"]

    # An agent that is started anew while the notice holds gives nothing out.
    agent.stop(signal.SIGKILL)
    again = start(config)
    assert {phase for phase, _ in phases(again).values()} == {"Pending"}
    assert again.command("reclaim", "cancel")[0] == 0
    settled(again, {"Pending", "Prepared"})
    eventually(lambda: phases(again) == before, lambda: str(phases(again)))


def test_at_the_next_boot_claims_are_allocated_again(start: Start, tmp_path: Path, claims: Path) -> None:
    agent = start("")
    agent.command("claim", "apply", "-f", str(claims))
    before = phases(agent)
    agent.command("reclaim", "start")
    settled(agent, {"Pending"})
    agent.stop(signal.SIGKILL)
    state = tmp_path / "s" / "reclaim.json"
    kept = json.loads(state.read_text())
    kept["state"]["boot"] = "an earlier boot"
    state.write_text(json.dumps(kept))
    again = start("")
    assert phases(again) == before


def test_a_program_that_is_not_there_does_not_hold_up_a_release(start: Start, claims: Path) -> None:
    agent = start('[reclaim]\nhook = ["/nowhere/hook"]\n')
    agent.command("claim", "apply", "-f", str(claims))
    agent.command("reclaim", "start", "--in", "30")
    agent.wait_for("the hook cannot be run")
    agent.wait_for("every claim is released")
    settled(agent, {"Pending"})


def test_told_to_stop_it_releases_claims_first(start: Start, tmp_path: Path, claims: Path) -> None:
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


def test_a_socket_that_cannot_be_had_keeps_nobody_from_starting(tmp_path: Path, start: Start, aws: FakeAws) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    (tmp_path / "s" / "reclaim.sock").write_text("mine")
    agent = start(f'[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n')
    agent.wait_for("operators cannot reach the agent about a reclaim")
    aws.set(autoscaling="Terminated")
    agent.wait_for("reclaim: notice")
    agent.stop()
    assert (tmp_path / "s" / "reclaim.sock").read_text() == "mine"
