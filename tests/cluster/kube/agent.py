"""The agent as a process on a node, with simulated hardware."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from .api import SLICES, Object
from .node import Node
from .process import LONG_TIMEOUT_S, Process, until

DRIVER = "dra-agent.internal"
"""The default driver name of the agent."""


class Agent:
    """`dra-agent run` for one node. It can be killed, stopped and started again with the same state directory."""

    def __init__(
        self,
        node: Node,
        profile: str | None,
        kubeconfig: Path,
        *,
        driver: str = DRIVER,
        flags: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        instance: str = "",
    ) -> None:
        """Create it; `start` starts it. `instance` distinguishes two agents of one driver on one node.

        Without a profile the flags must set the hardware.
        """
        self.node = node
        self.profile = profile
        self.driver = driver
        self.name = f"{node.name} agent {driver}{instance and ' ' + instance}"
        self.state_dir = node.directory / f"agent-{driver}"
        command = [sys.executable, "-m", "dra_agent", "run", "--kubeconfig", str(kubeconfig)]
        command += ["--simulate", profile] if profile else []
        command += ["--node-name", node.name, "--driver-name", driver]
        command += ["--kubelet-dir", str(node.kubelet_dir), "--cdi-dir", str(node.cdi_dir)]
        command += ["--state-dir", str(self.state_dir), "--metrics-address", "127.0.0.1:0", "--log-level", "debug"]
        log = node.directory / f"agent-{driver}{instance and '-' + instance}.log"
        self.process = Process(
            self.name,
            [*command, *flags],
            log,
            node.cluster_dir.directory,
            environment={**_clean(), **(environment or {})},
        )

    @property
    def host(self) -> Path:
        """The directory of its simulated host, which `dra-agent simulate` changes."""
        assert self.profile, "the agent has no simulated hardware profile"
        return self.state_dir / "simulated" / self.profile

    def start(self) -> Agent:
        """Start it without waiting."""
        self.process.start()
        return self

    def ready(self, timeout_s: float = LONG_TIMEOUT_S) -> Agent:
        """Wait until it serves, the kubelet has registered it, and its slices are published."""

        def published() -> bool:
            self.process.check_running()
            listed = self.slices()
            metrics = self.metrics()
            settled = metrics.get("dra_agent_publish_pending_pools") == 0
            count_matches = metrics.get("dra_agent_publish_slices") == len(listed)
            return bool(listed) and settled and count_matches and self.pools_are_complete()

        until(published, f"{self.name} has published its slices", timeout_s)
        until(lambda: self.get("/readyz")[0] == 200, f"{self.name} is ready", timeout_s)
        return self

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def end(self, timeout_s: float = LONG_TIMEOUT_S) -> int | None:
        """Send SIGTERM; return the exit code."""
        return self.process.end(signal.SIGTERM, timeout_s)

    def restart(self) -> Agent:
        """Stop it with SIGTERM and start it again with the same state."""
        self.end()
        return self.start()

    def read_log(self, *, current_run: bool = True) -> str:
        """Return its log."""
        return self.process.read_log(current_run=current_run)

    def wait_for_log(self, pattern: str, timeout_s: float = LONG_TIMEOUT_S) -> re.Match[str]:
        """Wait until the current process has logged the pattern."""

        def found() -> re.Match[str] | None:
            self.process.check_running()
            return re.search(pattern, self.read_log())

        until(found, f"{self.name} logs {pattern!r}", timeout_s)
        match = found()
        assert match
        return match

    def get(self, path: str) -> tuple[int, str]:
        """GET from its metrics and health port; return status and body."""
        port = self.wait_for_log(r"port=(\d+)")[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Return its metrics by name and labels: `dra_agent_devices{state="healthy"}`."""
        lines = [line.rpartition(" ") for line in self.get("/metrics")[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def slices(self) -> list[Object]:
        """Return its published ResourceSlices, sorted by name."""
        listed = self.node.api.list(SLICES, fields={"spec.driver": self.driver, "spec.nodeName": self.node.name})
        return sorted(listed, key=lambda item: item["metadata"]["name"])

    def devices(self) -> dict[str, Object]:
        """Return the published devices by name."""
        return {device["name"]: device for item in self.slices() for device in item["spec"].get("devices", [])}

    def pools(self) -> dict[str, list[Object]]:
        """Return the slices of each pool."""
        pools: dict[str, list[Object]] = {}
        for item in self.slices():
            pools.setdefault(item["spec"]["pool"]["name"], []).append(item)
        return pools

    def pools_are_complete(self) -> bool:
        """Return whether every pool is complete: as many slices of the newest generation as resourceSliceCount."""
        pools = [[item["spec"]["pool"] for item in slices] for slices in self.pools().values()]
        return bool(pools) and all(_is_complete(pool) for pool in pools)

    def simulate(self, action: str, *arguments: str) -> str:
        """Change its simulated host: `simulate("unplug", "0000:1b:00.0")`; return the output of the command."""
        command = [sys.executable, "-m", "dra_agent", "simulate", action, str(self.host), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG_TIMEOUT_S)
        assert result.returncode == 0, f"simulate {action}: {result.stderr}"
        return result.stdout


def _is_complete(pool: list[Object]) -> bool:
    newest = max(part["generation"] for part in pool)
    current = [part for part in pool if part["generation"] == newest]
    return bool(len(current) == current[0]["resourceSliceCount"])


def _clean() -> dict[str, str]:
    """Clear every DRA_AGENT_* variable of the test environment: an empty variable counts as unset."""
    import os

    return {name: "" for name in os.environ if name.startswith("DRA_AGENT_")}
