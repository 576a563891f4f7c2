"""The agent as a service of systemd in a guest, from the Debian package of this checkout in a clean root."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from eventually import eventually
from packages.conftest import ROOT, build_package
from packages.machine import base_root
from vm.machine.agent import CONFIG, Log, claim
from vm.machine.guest import Guest

INCLUDED = "systemd,systemd-sysv,dbus,udev,python3,procps,iproute2"
UNITS = Path("etc/systemd/system")
UNIT = "dra-agent.service"
INSTALL_TIMEOUT_S = 900.0
BOOT_TIMEOUT_S = 300.0
PHASE_TIMEOUT_S = 120.0
DISK_MIB = 64
CONFIGURATION = "/etc/dra-agent/config.toml"
PASSTHROUGH = """
[[inventory.passthrough]]
when = 'device.attributes["dra-agent.internal"].vendor == "intel"'
"""
FILES = {
    # It answers until the last processes are ended.
    UNITS / "shell.service": """\
[Unit]
DefaultDependencies=no

[Service]
ExecStart=/usr/bin/python3 -I -S /shell_server.py
KillMode=process
""",
    # Times for an emulated CPU.
    UNITS / f"{UNIT}.d/emulated.conf": """\
[Service]
TimeoutStartSec=900
WatchdogSec=30
TimeoutAbortSec=5
""",
    Path("etc/systemd/logind.conf.d/emulated.conf"): "[Login]\nInhibitDelayMaxSec=120\n",
    Path("etc/machine-id"): "0123456789abcdef0123456789abcdef\n",
    Path(CONFIGURATION.lstrip("/")): CONFIG + PASSTHROUGH,
}
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
    # Their module is not among those of the guest.
    *("proc-sys-fs-binfmt_misc.automount", "systemd-binfmt.service"),
)


def make_root(folder: Path) -> Path:
    """Make a root with the package and its configuration."""
    root = folder / "root"
    subprocess.run(["cp", "--archive", base_root(INCLUDED), root], check=True)
    (folder / "package").mkdir()
    build_package(folder / "package")
    command: list[str | Path] = ["dpkg", f"--root={root}", "--install", folder / "package/old.deb"]
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    shutil.copy(ROOT / "systemd/devices.conf", root / UNITS / f"{UNIT}.d")
    (root / UNITS / "sysinit.target.wants").mkdir(exist_ok=True)
    (root / UNITS / "sysinit.target.wants/shell.service").symlink_to("../shell.service")
    for unit in MASKED:
        (root / UNITS / unit).symlink_to("/dev/null")
    # Otherwise systemd updates its databases at the first boot, which takes minutes of an emulated CPU.
    for name in ("etc/.updated", "var/.updated"):
        (root / name).touch()
    return root


def make_disk(path: Path) -> Path:
    """Make a disk with an empty file system."""
    with path.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    subprocess.run(["mkfs.ext4", "-q", path], check=True)
    return path


class Service:
    """The service in a guest that has started."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.follow()

    def follow(self) -> None:
        """Wait until a boot has ended, and read the log from then on."""
        self.guest.run("systemctl is-system-running --wait", within_s=BOOT_TIMEOUT_S, check=False)
        self.log = Log(self.guest)
        command = f"journalctl --follow --boot --lines=all --output=cat --unit={UNIT}"
        self.guest.run(f"setsid {command} > {self.log.shared_path} 2>&1 &")

    def property(self, name: str) -> str:
        """Return a property of the service."""
        return self.guest.run(f"systemctl show --value --property={name} {UNIT}").strip()

    def claim(self, name: str, expression: str) -> None:
        """Apply a claim for one device, and wait until it is prepared."""
        (self.guest.shared / "claim.yaml").write_text(claim(name, expression))
        self.guest.run("dra-agent claim apply -f /shared/claim.yaml", check=False)
        self.wait_until_prepared(name)

    def wait_until_prepared(self, name: str) -> None:
        """Wait until a claim is prepared."""

        def prepared() -> bool:
            shown.update(json.loads(self.guest.run(f"dra-agent claim get {name} -o json")))
            return bool(shown["phase"] == "Prepared")

        shown: dict[str, Any] = {}
        eventually(prepared, lambda: shown, within=self.guest.patience_s(PHASE_TIMEOUT_S))
