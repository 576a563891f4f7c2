"""A real agent without Kubernetes writes the notice files of its claims."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from eventually import eventually
from reclaim.agent_process import Agent, Start, phases, wait_for_phases

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/notice/class.yaml"


def mounted_directory(agent: Agent, cdi: Path) -> Path:
    """Return the directory that containers of the only claim mount."""
    code, text = agent.command("claim", "list", "-o", "json")
    assert code == 0, text
    (spec,) = [json.loads(path.read_text()) for path in cdi.glob("*.json")]
    (device,) = spec["devices"]
    (mount,) = [mount for mount in device["containerEdits"]["mounts"] if "notice" in mount["containerPath"]]
    (uid,) = [view["uid"] for view in json.loads(text)]
    assert mount["containerPath"] == f"/run/dra-agent/notice/{uid}" and "ro" in mount["options"]
    assert f"DRA_AGENT_NOTICE_DIR={mount['containerPath']}" in device["containerEdits"]["env"]
    return Path(mount["hostPath"])


def test_containers_of_a_claim_are_notified_and_outlive_its_release(start: Start, tmp_path: Path) -> None:
    agent = start("")
    code, text = agent.command("claim", "apply", "-f", str(EXAMPLE))
    assert code == 0, text
    wait_for_phases(agent, {"Prepared"})
    directory = mounted_directory(agent, tmp_path / "cdi")
    inode, file = directory.stat().st_ino, directory / "notice.json"

    def read() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(file.read_text())
        return document

    def phase() -> str:
        return str(read()["phase"])

    assert phase() == "none"
    assert agent.command("reclaim", "start", "--hint", "--why", "rack 7")[0] == 0
    eventually(lambda: phase() == "hint")
    assert phases(agent)["training"][0] == "Prepared"

    agent.stop(signal.SIGKILL)
    file.unlink()
    restarted = start("")
    eventually(lambda: file.exists() and phase() == "hint")
    assert restarted.command("reclaim", "start", "--in", "300")[0] == 0
    eventually(lambda: phase() == "notice")
    wait_for_phases(restarted, {"Pending"})
    assert not list((tmp_path / "cdi").glob("*.json"))
    assert phase() == "notice" and "rack 7" not in file.read_text()
    assert {"deadline", "source", "observedAt"} < set(read())

    assert restarted.command("reclaim", "cancel")[0] == 0
    eventually(lambda: phase() == "cancelled")
    wait_for_phases(restarted, {"Prepared"})
    assert directory.stat().st_ino == inode, "a running container still sees the file"
    assert restarted.command("claim", "delete", "training")[0] == 0
    eventually(lambda: not directory.exists())
