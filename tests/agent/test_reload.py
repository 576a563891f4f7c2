"""A running agent follows its configuration file, and then publishes what a new agent would publish."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import preloaded
from agent.conftest import AgentProcess, ServiceManager, Start
from agent.test_claims import CLAIM
from dra_agent.agent.config import Config
from dra_agent.agent.config_keys import changed_keys, is_reloadable
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.reload import Reload, merged
from dra_agent.errors import UsageError
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.settings import AttributeRule, InventorySettings
from dra_agent.threads import no_thread
from dra_simulate import build
from eventually import eventually

NO_NICS = '[inventory]\nexclude = [\'device.attributes["dra-agent.internal"].type == "nic"\']\n'
RULES = ("true", "false", 'device.attributes["dra-agent.internal"].type == "gpu"', "nope ==", "device.driver")


def random_settings(source: random.Random) -> InventorySettings:
    def rules() -> tuple[str, ...]:
        return tuple(source.choices(RULES[:3] * 3 + RULES, k=source.randrange(3)))

    name = source.choice(("rack", "zone", "uuid"))
    return InventorySettings(
        include=rules(),
        exclude=rules(),
        attributes=(AttributeRule("true", {name: source.randrange(9)}),) * source.randrange(2),
        host_uplink=source.choice(("exclude", "include")),
    )


def test_a_reload_publishes_the_devices_of_a_restart_or_changes_nothing(tmp_path: Path) -> None:
    host = build("dgx-h100", tmp_path)
    source = random.Random(20261124)
    running = DeviceState(host, InventorySettings(), node="n", driver="dra-agent.internal")
    applied = refused = 0
    try:
        for _ in range(25):
            settings = random_settings(source)
            health = HealthSettings(unmonitored=source.choice(("tell", "NoSchedule", "none")))
            before = running.inventory
            try:
                running.configure(settings, health)
            except UsageError:
                refused += 1
                assert running.inventory is before
                with pytest.raises(UsageError):
                    DeviceState(host, settings, node="n", driver="dra-agent.internal")
                continue
            applied += 1
            fresh = DeviceState(host, settings, node="n", driver="dra-agent.internal")
            try:
                assert running.inventory.devices == fresh.inventory.devices
                assert running.inventory.excluded == fresh.inventory.excluded
            finally:
                fresh.close()
    finally:
        running.close()
    assert applied > 5 and refused > 2


def test_a_claim_finds_an_excluded_device_until_it_is_published_again_or_removed(tmp_path: Path) -> None:
    state = DeviceState(build("vm-1gpu", tmp_path), InventorySettings(), node="n", driver="dra-agent.internal")
    try:
        (device,) = [one for one in state.inventory.devices if one.family == "gpu"]
        nothing = InventorySettings(exclude=("true",))
        for _ in range(2):
            assert device.name in state.configure(nothing, HealthSettings()).removed or not state.inventory.devices
            assert state.inventory.devices == ()
            assert state.lookup("n/gpu", device.name) == device
        state.configure(InventorySettings(), HealthSettings())
        assert state.lookup("n/gpu", device.name) == device and device in state.inventory.devices
        assert state.lookup("n/gpu", "gpu-other") is None
    finally:
        state.close()


def test_only_reloadable_keys_are_taken_over() -> None:
    loaded = Config(
        standalone=True,
        log_level="debug",
        inventory=InventorySettings(exclude=("true",), nvml_timeout=1.0),
        health=HealthSettings(fatal="none"),
    )
    changed = changed_keys(Config(), merged(Config(), loaded))
    assert changed == ["log_level", "inventory.exclude", "health.fatal"]
    assert not any(map(is_reloadable, changed_keys(merged(Config(), loaded), loaded)))


def test_a_reload_whose_report_fails_does_not_end_reloads(caplog: pytest.LogCaptureFixture) -> None:
    failures, reads, ended = [MemoryError()], [0], [0]

    def read() -> Config:
        reads[0] += 1
        raise UsageError("wrong", where="config")

    def end() -> None:
        if failures:
            raise failures.pop()
        ended[0] += 1

    reload = Reload(Config(), read)
    reload.follow(lambda config: None, end)
    reload()
    eventually(lambda: not failures)
    reload()
    eventually(lambda: ended[0])
    assert reads[0] == 2 and not reload.status.successful


def test_a_reload_without_room_for_a_thread_is_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(level: str, format_: str) -> None:
        raise no_thread("log")

    monkeypatch.setattr("dra_agent.agent.logs.set_up", refuse)
    ended: list[bool] = []
    reload = Reload(Config(), Config)
    reload.follow(lambda config: None, lambda: ended.append(reload.status.successful))
    reload()
    assert eventually(lambda: ended) == [False]
    assert "no room for another thread" in reload.status.problems[0]


def doctor(state: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "dra_agent", "doctor", "-o", "json", "--all", "--state-dir", str(state)]
    found = subprocess.run(command, capture_output=True, check=False, timeout=300)
    return [one for one in json.loads(found.stdout)["findings"] if one["check"] == "configuration"]


def metrics(agent: AgentProcess) -> dict[str, float]:
    found = re.findall(r"^dra_agent_config_(\S+) (\S+)$", agent.get("/metrics")[1], re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_a_change_of_a_mounted_file_is_followed_and_a_wrong_one_is_reported(
    start: Start, tmp_path: Path, state: Path
) -> None:
    """The links are those of a ConfigMap volume: `..data` is replaced by a rename."""
    folder = tmp_path / "etc"
    folder.mkdir()

    def publish(version: str, text: str) -> None:
        (folder / version).mkdir()
        (folder / version / "config.toml").write_text(text)
        (folder / "..data_tmp").symlink_to(version)
        (folder / "..data_tmp").rename(folder / "..data")

    publish("..1", "")
    file = folder / "config.toml"
    file.symlink_to("..data/config.toml")
    agent = start("--config", str(file), "--metrics-address", "127.0.0.1:0").ready()
    before = metrics(agent)
    assert before["last_reload_successful"] == 1
    publish("..2", NO_NICS)
    agent.wait_for("info configuration reloaded applied=inventory.exclude\n")
    after = metrics(agent)
    assert after["last_reload_successful"] == 1 and after["hash"] != before["hash"]
    publish("..3", NO_NICS + "nope = 1\n[health]\nfatal = 1\n")
    agent.wait_for("error configuration not reloaded.*unknown key 'nope'")
    agent.wait_for("error configuration not reloaded.*health.fatal")
    wrong = metrics(agent)
    assert (wrong["last_reload_successful"], wrong["hash"]) == (0, after["hash"])
    findings = doctor(state)
    assert [one["severity"] for one in findings] == ["problem", "problem"], findings
    publish("..4", 'driver_name = "other.example"\n')
    agent.wait_for("warning settings changed that need a restart of the agent settings=driver_name\n")
    eventually(lambda: metrics(agent)["last_reload_successful"] == 1)
    (finding,) = doctor(state)
    assert finding["severity"] == "warning" and "driver_name" in finding["what"]
    assert agent.end() == 0


def test_a_section_of_an_earlier_version_stops_neither_start_nor_reload(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    section = "[otlp]\nendpoint = 'http://127.0.0.1:4318'\n"
    file.write_text(section)
    agent = start("--config", str(file)).ready()
    place = r"warning setting of an earlier version ignored reason=.*config\.toml:{}: otlp: no longer used"
    agent.wait_for(place.format(1))
    file.write_text(f"log_level = 'debug'\n{section}")
    agent.wait_for(place.format(2))
    agent.wait_for("info configuration reloaded applied=log_level\n")
    assert agent.end() == 0


def test_a_claim_keeps_a_device_that_a_new_rule_excludes(
    start: Start, tmp_path: Path, state: Path, service_manager: ServiceManager
) -> None:
    """The service manager sees the reload, which starts and ends while the claim is held."""
    file = tmp_path / "config.toml"
    file.write_text("")
    agent = start("--config", str(file), environment={"NOTIFY_SOCKET": str(service_manager.path)}).ready()
    claims = tmp_path / "claim.yaml"
    claims.write_text(CLAIM)

    def cli(*arguments: str) -> str:
        result = preloaded.run([*arguments, "--state-dir", str(state)], env=dict(os.environ), cwd=tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    cli("claim", "apply", "-f", str(claims))
    cli("claim", "wait", "team/training")
    (held,) = json.loads(cli("claims", "-o", "json"))
    file.write_text('[inventory]\nexclude = ["true"]\n')
    agent.wait_for("info configuration reloaded applied=inventory.exclude\n")
    (still_held,) = json.loads(cli("claims", "-o", "json"))
    assert still_held | {"state": "", "reason": ""} == held | {"state": "", "reason": ""}
    assert "gpu-" not in cli("slices", "-o", "json")
    cli("claim", "delete", "team/training")
    eventually(lambda: "training" not in cli("claims", "-o", "json"), agent.log_text)
    messages = service_manager.status_messages()
    (reloading,) = [number for number, message in enumerate(messages) if message.startswith("RELOADING=1\nMONOTONIC_")]
    assert messages[reloading + 1].startswith("READY=1\nSTATUS=")
    assert agent.end() == 0


def test_sources_of_notices_and_the_hook_follow_the_file(start: Start, tmp_path: Path, state: Path) -> None:
    file, notice, released = tmp_path / "config.toml", tmp_path / "notice", tmp_path / "released"
    file.write_text("")
    claim = tmp_path / "claim.yaml"
    claim.write_text(CLAIM)
    agent = start("--config", str(file)).ready()
    for arguments in (("claim", "apply", "-f", str(claim)), ("claim", "wait", "team/training")):
        done = preloaded.run([*arguments, "--state-dir", str(state)], env=dict(os.environ), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    refused = '[inventory]\nexclude = ["true"]\n[reclaim]\ncloud = "aws"\nendpoint = "ftp://nowhere"\n'
    file.write_text(refused)
    agent.wait_for("error configuration not reloaded.*ftp://nowhere")
    valid = f'[reclaim]\nfile = "{notice}"\nhook = ["/usr/bin/touch", "{released}"]\n'
    file.write_text(valid)
    # The refused file would have changed `inventory.exclude`, and this one would change it back.
    agent.wait_for("info configuration reloaded applied=reclaim.file,reclaim.hook\n")
    notice.touch()
    agent.wait_for("warning reclaim: notice was=none source=file")
    agent.wait_for("every claim is released and waits for the next host")
    assert released.exists()
    file.write_text("")
    agent.wait_for("warning reclaim: cancelled was=notice")
    assert agent.end() == 0


def test_the_status_of_the_unit_names_a_refused_configuration(
    start: Start, tmp_path: Path, service_manager: ServiceManager
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("")
    agent = start("--config", str(file), environment={"NOTIFY_SOCKET": str(service_manager.path)}).ready()

    def status() -> str:
        sent = [line for message in service_manager.messages for line in message.splitlines()]
        return [line for line in sent if line.startswith("STATUS=")][-1]

    file.write_text("nope = 1\n")
    eventually(lambda: "configuration not reloaded: " in status() and "nope" in status(), agent.log_text)
    file.write_text('log_level = "debug"\n')
    eventually(lambda: "devices on node" in status() and "not reloaded" not in status(), agent.log_text)
    assert agent.end() == 0
