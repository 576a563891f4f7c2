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
from .process import LONG, Process, until

DRIVER = "dra-agent.internal"
"""The name that the agent has unless it is told another one."""


class Agent:
    """`dra-agent run` for one node. Can be killed, ended, and started again on the state that it left."""

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
        """Describe it; `start` starts it. `instance` tells two agents of one driver on one node apart.

        Without a profile the flags must say where the hardware is.
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
            self.name, [*command, *flags], log, node.place.directory, environment={**_clean(), **(environment or {})}
        )

    @property
    def host(self) -> Path:
        """The directory of its simulated host: what `dra-agent simulate` changes."""
        assert self.profile, "its hardware is not of a profile"
        return self.state_dir / "simulated" / self.profile

    def start(self) -> Agent:
        """Start it; does not wait."""
        self.process.start()
        return self

    def ready(self, at_most: float = LONG) -> Agent:
        """Wait until it serves, and the kubelet has registered it and its slices are published."""

        def published() -> bool:
            self.process.alive()
            listed = self.slices()
            metrics = self.metrics()
            settled = metrics.get("dra_agent_publish_pending_pools") == 0
            as_counted = metrics.get("dra_agent_publish_slices") == len(listed)
            return bool(listed) and settled and as_counted and self.pools_are_complete()

        until(published, f"{self.name} has published its slices", at_most)
        until(lambda: self.get("/readyz")[0] == 200, f"{self.name} says that it is ready", at_most)
        return self

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def end(self, at_most: float = LONG) -> int | None:
        """SIGTERM; its exit code."""
        return self.process.end(signal.SIGTERM, at_most)

    def restart(self) -> Agent:
        """SIGTERM, and start it again on its state."""
        self.end()
        return self.start()

    def said(self, *, this_life: bool = True) -> str:
        """Its log."""
        return self.process.said(this_life=this_life)

    def wait_for_log(self, pattern: str, at_most: float = LONG) -> re.Match[str]:
        """Wait until its present life has logged the pattern."""

        def found() -> re.Match[str] | None:
            self.process.alive()
            return re.search(pattern, self.said())

        until(found, f"{self.name} says {pattern!r}", at_most)
        match = found()
        assert match
        return match

    def get(self, path: str) -> tuple[int, str]:
        """GET on its port for metrics and health: status and text."""
        port = self.wait_for_log(r"port=(\d+)")[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Its metrics by name and labels, as they are written: `dra_agent_devices{state="healthy"}`."""
        lines = [line.rpartition(" ") for line in self.get("/metrics")[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def slices(self) -> list[Object]:
        """Its ResourceSlices as they are published, in the order of their names."""
        listed = self.node.api.list(SLICES, fields={"spec.driver": self.driver, "spec.nodeName": self.node.name})
        return sorted(listed, key=lambda item: item["metadata"]["name"])

    def devices(self) -> dict[str, Object]:
        """The published devices by name."""
        return {device["name"]: device for item in self.slices() for device in item["spec"].get("devices", [])}

    def pools(self) -> dict[str, list[Object]]:
        """The slices of each pool."""
        pools: dict[str, list[Object]] = {}
        for item in self.slices():
            pools.setdefault(item["spec"]["pool"]["name"], []).append(item)
        return pools

    def pools_are_complete(self) -> bool:
        """Whether the scheduler would use every pool: as many slices of the newest generation as it should have."""
        pools = [[item["spec"]["pool"] for item in slices] for slices in self.pools().values()]
        return bool(pools) and all(_is_complete(pool) for pool in pools)

    def simulate(self, action: str, *arguments: str) -> str:
        """Change its simulated host: `simulate("unplug", "0000:1b:00.0")`; what the command printed."""
        command = [sys.executable, "-m", "dra_agent", "simulate", action, str(self.host), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
        assert done.returncode == 0, f"simulate {action}: {done.stderr}"
        return done.stdout


def _is_complete(pool: list[Object]) -> bool:
    newest = max(part["generation"] for part in pool)
    current = [part for part in pool if part["generation"] == newest]
    return bool(len(current) == current[0]["resourceSliceCount"])


def _clean() -> dict[str, str]:
    """No DRA_AGENT_* of whoever runs the tests has a say: an empty variable counts as none."""
    import os

    return {name: "" for name in os.environ if name.startswith("DRA_AGENT_")}
