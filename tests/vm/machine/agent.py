"""This checkout in a guest whose root is that of this host: `dra-agent` commands, and an agent without Kubernetes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventually import eventually
from vm.machine.guest import Guest

PROGRAMS = "/run/programs"
"""The directory of the program `dra-agent`."""
IMPORT_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0
"""The first start reads all modules through 9p."""
PHASE_TIMEOUT_S = 30.0
COMMANDS = Path(__file__).resolve().parents[1] / "guest/preloaded_commands.py"
CONFIG = """\
standalone = true
node_name = "guest"
log_format = "json"
state_dir = "/var/lib/dra-agent"
run_dir = "/run/dra-agent"
cdi_dir = "/run/cdi"
[health]
recovery_seconds = 1
"""
"""A device that comes back a second time is unhealthy for twice that time, and the next time for four times."""

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: any}
spec: {selectors: [{cel: {expression: 'device.driver == "dra-agent.internal"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: NAME}
spec:
  devices:
    requests:
    - name: device
      exactly:
        deviceClassName: any
        selectors: [{cel: {expression: 'EXPRESSION'}}]
"""


def claim(name: str, expression: str, config: str = "") -> str:
    """Return a claim for one device in YAML, with its class."""
    text = CLAIM.replace("NAME", name).replace("EXPRESSION", expression)
    if config:
        text += f"    config: [{{opaque: {{driver: dra-agent.internal, parameters: {config}}}}}]\n"
    return text


def at_address(address: str) -> str:
    """Return the CEL expression that selects the device at a PCI address."""
    return f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'


class Commands:
    """`dra-agent` commands in the guest."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.configure("")
        guest.run(f"setsid {sys.executable} {COMMANDS} {PROGRAMS} > /run/preloaded.log 2>&1 &")
        guest.run(f"until test -e {PROGRAMS}; do sleep 0.2; done", within_s=IMPORT_TIMEOUT_S)

    def configure(self, settings: str) -> None:
        """Write the configuration file, of commands and of an agent."""
        self.write("/etc/dra-agent/config.toml", CONFIG + settings)

    def write(self, path: str, text: str) -> None:
        """Write a file of the guest, with its directory."""
        (self.guest.shared / "written").write_text(text)
        self.guest.run(f"mkdir -p $(dirname {path}) && cp /shared/written {path}")

    def run(self, arguments: str, *, check: bool = True) -> str:
        """Run a command of dra-agent and return its output."""
        return self.guest.run(f"{PROGRAMS}/dra-agent {arguments}", check=check)

    def read(self, arguments: str) -> Any:
        """Run a command and return the JSON that it prints."""
        return json.loads(self.run(f"{arguments} -o json 2> /run/errors"))

    def topology(self) -> dict[str, dict[str, Any]]:
        """Return all functions of the guest, by PCI address."""
        return {device["pci_address"]: device for device in self.read("topology")["devices"]}


def is_ready(entry: dict[str, Any]) -> bool:
    """Return whether an entry of the log is that of the end of a start."""
    return str(entry["message"]) == "ready"


def added(entry: dict[str, Any]) -> object:
    """Return the names of devices that an entry of the log adds."""
    return entry["message"] == "devices changed" and entry.get("added")


def removed(entry: dict[str, Any]) -> object:
    """Return the names of devices that an entry of the log removes."""
    return entry["message"] == "devices changed" and entry.get("removed")


class Log:
    """The log of an agent in JSON, in a file that the guest shares with this host."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._path = guest.shared / f"log-{sum(1 for _ in guest.shared.glob('log-*'))}"
        self._path.touch()
        self.shared_path = f"/shared/{self._path.name}"

    def entries(self) -> list[dict[str, Any]]:
        """Return the complete entries; other lines are not of the agent."""
        lines = self._path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]

    def wait_for(
        self, matches: Callable[[dict[str, Any]], object], *, within_s: float, after: int = 0
    ) -> dict[str, Any]:
        """Return the first entry that matches, at or after that position."""

        def found() -> dict[str, Any] | None:
            return next((entry for entry in self.entries()[after:] if matches(entry)), None)

        entry = eventually(found, self._path.read_text, within=self._guest.patience_s(within_s))
        assert entry is not None
        return entry


class Agent:
    """An agent of the guest, from the start to `stop`."""

    def __init__(self, commands: Commands, settings: str) -> None:
        self.commands = commands
        self.guest = commands.guest
        self.log = Log(self.guest)
        commands.configure(settings)
        self.guest.measure()
        self.guest.run(
            f"rm -rf /var/lib/dra-agent/*; setsid {PROGRAMS}/dra-agent run > {self.log.shared_path} 2>&1 &"
            " echo $! > /run/agent.pid"
        )
        try:
            self.log.wait_for(is_ready, within_s=START_TIMEOUT_S)
        except BaseException:
            self.guest.run("kill $(cat /run/agent.pid)", check=False)
            raise

    def apply(self, name: str, expression: str, config: str = "", *, check: bool = True) -> None:
        """Apply a claim for one device that the CEL expression selects, with a NicConfig or another object in YAML."""
        self.commands.write(f"/run/claims/{name}.yaml", claim(name, expression, config))
        self.commands.run(f"claim apply -f /run/claims/{name}.yaml", check=check)

    def wait_for_phase(self, name: str, phase: str) -> str:
        """Wait until a claim has this phase, and return the message that it has then."""

        def reached() -> bool:
            found.update(self.commands.read(f"claim get {name}"))
            return bool(found["phase"] == phase)

        found: dict[str, Any] = {}
        eventually(reached, lambda: found, within=self.guest.patience_s(PHASE_TIMEOUT_S))
        return str(found["message"])

    def delete(self, name: str) -> None:
        """Delete a claim, which releases its device."""
        self.commands.run(f"claim delete {name}")

    def stop(self) -> None:
        """End it."""
        self.guest.run("kill $(cat /run/agent.pid)")
        self.log.wait_for(lambda entry: entry["message"] == "stopped", within_s=START_TIMEOUT_S)
        self.commands.configure("")
