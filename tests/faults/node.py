"""One node of the campaign: a standalone agent on a simulated host whose disk fails, and what was promised to users.

The agent is a real process, started again as often as a case wants. Only its hardware is simulated, outside of the
directories whose disk fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dra_agent import simulate
from dra_agent.errors import AgentError
from dra_agent.simulate import mig, nvml
from dra_agent.standalone.evaluation import INTERRUPTED
from dra_agent.standalone.protocol import Apply, Client, Delete, Get, ListClaims
from faults.disk import Disk

PROFILE = "dgx-h100"
DEADLINE_S = 600.0
"""For what takes seconds: a campaign runs for hours, on a machine that does other things as well."""
MIG_GPU, VFIO_GPU = "0000:1b:00.0", "0000:43:00.0"
PATIENCE_S = 5.0
"""For a claim on a disk that has failed, and may never do what the claim needs."""
POLL_INTERVAL_S = 0.05
DRIVER = "dra-agent.internal"
CONFIG = f"""
device_metadata = true
[[inventory.partition]]
mode = "mig"
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{MIG_GPU}"'
[[inventory.passthrough]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{VFIO_GPU}"'
"""
_OWN = f'device.attributes["{DRIVER}"]'
_SELECTORS = {
    "whole": f'{_OWN}.type == "gpu" && device.attributes["resource.kubernetes.io"].pciBusID != "{MIG_GPU}"',
    "slice": f'{_OWN}.type == "mig" && {_OWN}.profile == "1g.10gb"',
    "passed": f'{_OWN}.type == "vfio"',
}
_READY = ("Prepared", "Unhealthy")
_TIME_SLICE = {"apiVersion": f"{DRIVER}/v1", "kind": "GpuConfig", "timeSlicing": {"interval": "Short"}}


def device_class(name: str) -> dict[str, Any]:
    """A class of one kind of device, by its name in `_SELECTORS`."""
    selectors = [{"cel": {"expression": _SELECTORS[name]}}]
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    return {**meta, "spec": {"selectors": selectors}}


def claim(name: str, of_class: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """A claim for one device of a class, with configuration for this driver."""
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": of_class}}]}
    if parameters is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**meta, "spec": {"devices": devices}}


CLASSES = [device_class(name) for name in _SELECTORS]
HELD = [claim("held-whole", "whole"), claim("held-slice", "slice")]
CLAIMS = [
    claim("whole", "whole"),
    claim("slice", "slice"),
    claim("passed", "passed"),
    claim("sliced-in-time", "whole", _TIME_SLICE),
]


class BrokenPromiseError(AssertionError):
    """Something that must never happen has happened."""


class Node:
    """Its directories, its agent while it runs, and the claims that it has answered for."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.state, self.cdi, self.log = folder / "state", folder / "cdi", folder / "log"
        self.host = self.state / "simulated" / PROFILE
        simulate.build(PROFILE, self.host)
        self.cdi.mkdir(exist_ok=True)
        self._config = folder / "config.toml"
        self._config.write_text(CONFIG)
        self.disk = Disk(library, folder / "disk", roots=[self.state, self.cdi], excluded=[self.state / "simulated"])
        self.agent: subprocess.Popen[bytes] | None = None
        self.prepared: dict[str, list[str]] = {}
        """What was answered as prepared and not asked to be released since: CDI ids by the claim's name."""
        self.accepted: set[str] = set()
        """Claims whose apply was answered, and whose delete was not asked for."""
        self.unsure: set[str] = set()
        """Claims that were asked for, or asked to be released, without an answer."""

    def start(self) -> bool:
        """Start the agent and wait until it answers; False where it ended instead."""
        command: list[str | Path] = [sys.executable, "-m", "dra_agent", "run", "--standalone", "--config", self._config]
        command += ["--state-dir", self.state, "--cdi-dir", self.cdi, "--simulate", PROFILE, "--node-name", "node-a"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        with self.log.open("wb") as log:
            self.agent = subprocess.Popen(command, stdout=log, stderr=log, env={**variables, **self.disk.environment})
        end = time.monotonic() + DEADLINE_S
        while b"info ready" not in self.log.read_bytes():
            if self.agent.poll() is not None:
                return False
            if time.monotonic() > end:
                raise BrokenPromiseError(f"not ready within {DEADLINE_S:.0f} s")
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        """End the agent as a service manager does; it may be dead already."""
        if self.agent is None:
            return
        if self.agent.poll() is None:
            self.agent.send_signal(signal.SIGTERM)
        try:
            self.agent.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            self.agent.wait()
            raise BrokenPromiseError(f"SIGTERM was not heeded within {DEADLINE_S:.0f} s") from None

    def close(self) -> None:
        """End everything, whatever state it is in."""
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
        if self.agent is not None:
            self.agent.wait()
        self.disk.close()

    def apply(self, *objects: dict[str, Any]) -> None:
        """Ask for claims one by one; an error is an answer too, and a claim may get its devices later."""
        for value in objects:
            name = value["metadata"]["name"]
            is_claim = value["kind"] == "ResourceClaim"
            if is_claim:
                self.unsure.add(name)
            try:
                with Client(self.state / "agent.sock") as client:
                    client.call(Apply([value]))
                    if is_claim:
                        self.unsure.discard(name)
                        self.accepted.add(name)
                        patience = Patience(self.disk)
                        while (view := client.call(Get("default", name, POLL_INTERVAL_S)))["phase"] not in _READY:
                            if view["phase"] == "Failed" or patience.is_over():
                                break
                        else:
                            self.prepared[name] = view["cdi_device_ids"]
            except AgentError:
                continue

    def delete(self, *names: str) -> None:
        """Ask for the release of claims, one by one."""
        for name in names:
            self.prepared.pop(name, None)
            self.accepted.discard(name)
            self.unsure.add(name)
            try:
                patience = Patience(self.disk)
                with Client(self.state / "agent.sock") as client:
                    released = client.call(Delete("ResourceClaim", name, "default", POLL_INTERVAL_S))
                while not released and not patience.is_over():
                    time.sleep(POLL_INTERVAL_S)
                    released = name not in self.views()
                if released:
                    self.unsure.discard(name)
            except AgentError:
                continue

    def views(self) -> dict[str, dict[str, Any]]:
        """Every claim of the agent by its name."""
        with Client(self.state / "agent.sock") as client:
            return {view["name"]: view for view in client.call(ListClaims())}

    def settle(self) -> dict[str, dict[str, Any]]:
        """Wait until no claim is on the way: each is prepared, refused, or waits for devices. Return all of them."""
        end = time.monotonic() + DEADLINE_S
        while any(map(_is_on_the_way, (views := self.views()).values())):
            if time.monotonic() > end:
                on_the_way = {name: (view["phase"], view["message"]) for name, view in views.items()}
                raise BrokenPromiseError(f"claims do not settle: {on_the_way}")
            time.sleep(POLL_INTERVAL_S)
        return views

    def check_promises(self) -> None:
        """After a restart on a disk that works: what was answered holds, and no device has two holders."""
        views = self.settle()
        for name in self.accepted:
            _must(name in views, f"claim {name} was accepted and is gone")
        for name, ids in self.prepared.items():
            _must(views[name]["phase"] == "Prepared", f"claim {name} was prepared: {views[name]['message']}")
            _must(views[name]["cdi_device_ids"] == ids, f"claim {name} has other CDI ids than those answered")
            self._check_usable(name, views[name])
        for name, view in views.items():
            known = name in self.accepted or name in self.unsure
            _must(known, f"claim {name} was released, and is back: {view['phase']}")
            # Who was killed while it chose devices cannot tell whether the claim was the reason.
            phase, message = view["phase"], view["message"]
            parked = (phase, message) == ("Failed", INTERRUPTED)
            _must(parked or phase in ("Prepared", "Pending"), f"claim {name}: {phase} {message}")
        holders = Counter(d["device"] for view in views.values() for d in view["devices"])
        _must(all(count == 1 for count in holders.values()), f"a device has two holders: {holders}")
        prepared = [view for view in views.values() if view["phase"] == "Prepared"]
        self._check_partitions(sum("mig" in str(view["devices"]) for view in prepared))
        self._check_log()

    def release_all(self) -> None:
        """Delete every claim, and stop; then nothing of them may be left anywhere."""
        for name in list(self.views()):
            self.delete(name)
        left_over = self.settle()
        _must(not left_over, f"claims that cannot be released: {left_over}")
        self.stop()  # a file that a running agent just writes is no leftover
        left = [path.name for path in self.cdi.rglob("*") if path.is_file()]
        _must(not left, f"CDI files of released claims: {left}")
        files = [path for path in self.state.rglob("*") if path.is_file() and "simulated" not in path.parts]
        temporary = [path for path in files if path.name.endswith(".tmp") or ".corrupt" in path.name]
        _must(not temporary, f"files that should not be left: {temporary}")
        self._check_partitions(0)
        self.prepared.clear()
        self.accepted.clear()
        self.unsure.clear()

    def _check_usable(self, name: str, view: dict[str, Any]) -> None:
        for cdi_id in view["cdi_device_ids"]:
            kind, _, device = cdi_id.partition("=")
            specs = [json.loads(path.read_text()) for path in self.cdi.glob("*.json")]
            found = [one for spec in specs if spec["kind"] == kind for one in spec["devices"] if one["name"] == device]
            _must(len(found) == 1, f"claim {name}: {len(found)} CDI devices are named {cdi_id}")

    def _check_partitions(self, expected: int) -> None:
        device = next(d for d in nvml.read(self.host / "lib").devices if d.pci.address == MIG_GPU)
        division = mig.read(self.host).get(device.uuid)
        made = len(division.gpu_instances) if division is not None else 0
        _must(made == expected, f"{made} MIG partitions for {expected} claims that hold one")

    def _check_log(self) -> None:
        text = self.log.read_text()
        _must("Traceback" not in text, f"a traceback in the log:\n{text}")


class Patience:
    """How long a claim is waited for: as long as it takes while the disk works, and not much longer once it failed."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._end = time.monotonic() + DEADLINE_S
        self._failed = False

    def is_over(self) -> bool:
        if not self._failed and self._disk.was_hit:
            self._failed, self._end = True, time.monotonic() + PATIENCE_S
        return time.monotonic() >= self._end


def _is_on_the_way(view: dict[str, Any]) -> bool:
    # An agent that has just started listens before it has tried every claim that waits.
    return view["phase"] in ("Allocated", "Deleting") or view["message"].startswith("is not tried yet")


def _must(truth: bool, otherwise: str) -> None:
    if not truth:
        raise BrokenPromiseError(otherwise)
