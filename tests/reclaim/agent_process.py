"""A real agent in standalone mode on a simulated host with one GPU and one NIC, and its command line."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import preloaded
from eventually import eventually


class Agent:
    """`dra-agent run`, and commands that connect to it."""

    def __init__(self, folder: Path, config: str, *flags: str, patch: str = "") -> None:
        """Start it; `patch` has statements that run first, for time limits on which a test must not depend."""
        self.state_dir = folder / "s"
        self.log = folder / f"log-{time.monotonic_ns()}"
        (folder / "config.toml").write_text(config)
        command = ["run", "--config", str(folder / "config.toml"), "--standalone"]
        command += ["--state-dir", str(self.state_dir), "--cdi-dir", str(folder / "cdi"), "--simulate", "vm-1gpu"]
        with self.log.open("w") as log:
            self.process = preloaded.Command(
                [*command, "--node-name", "n", *flags], stdout=log, stderr=log, patch=patch
            )

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the log matches the pattern; fail with the log otherwise."""

        def find_match() -> re.Match[str] | None:
            match = re.search(pattern, self.log.read_text())
            assert match or self.process.poll() is None, f"ended without {pattern!r}:\n{self.log.read_text()}"
            return match

        match = eventually(find_match, lambda: f"no {pattern!r}:\n{self.log.read_text()}")
        assert match is not None
        return match

    def command(self, *words: str) -> tuple[int, str]:
        result = preloaded.run([*words, "--state-dir", str(self.state_dir)])
        return result.returncode, result.stdout + result.stderr

    def status(self) -> dict[str, Any]:
        result = preloaded.run(["reclaim", "status", "-o", "json", "--state-dir", str(self.state_dir)])
        assert result.returncode == 0, result.stderr
        status: dict[str, Any] = json.loads(result.stdout)
        return status

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(60)


Start = Callable[..., Agent]

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "any"},
    "spec": {"selectors": [{"cel": {"expression": "true"}}]},
}


def claim(name: str) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "any"}}
    metadata = {"name": name, "namespace": "default"}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def phases(agent: Agent) -> dict[str, tuple[str, list[str]]]:
    code, text = agent.command("claim", "list", "-o", "json")
    assert code == 0, text
    return {
        view["name"]: (view["phase"], [device["device"] for device in view["devices"]]) for view in json.loads(text)
    }


def wait_for_phases(agent: Agent, expected: set[str]) -> dict[str, tuple[str, list[str]]]:
    """Wait until the phases of all claims are the expected ones."""
    claims: dict[str, tuple[str, list[str]]] = {}

    def are_in_phases() -> bool:
        nonlocal claims
        claims = phases(agent)
        return {phase for phase, _ in claims.values()} == expected

    eventually(are_in_phases, lambda: str(claims))
    return claims
