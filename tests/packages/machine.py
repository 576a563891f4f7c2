"""A machine with a clean Debian root and a real systemd, in namespaces of this host. Requires root and mmdebstrap."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from eventually import eventually

BOOT = Path(__file__).with_name("boot.sh")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dra-agent-packages"
INCLUDED = "systemd,systemd-sysv,python3,procps"
SUITE = "bookworm"
COMMAND_TIMEOUT_S = 300.0
BUILD_TIMEOUT_S = 900.0


def missing_requirement() -> str | None:
    """Return why no machine can run here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for name in ("mmdebstrap", "unshare", "nsenter", "dpkg-deb"):
        if shutil.which(name) is None:
            return f"needs {name}: apt-get install mmdebstrap util-linux dpkg"
    if cgroup2_root() is None:
        return "needs a mounted cgroup2 hierarchy"
    return None


def cgroup2_root() -> Path | None:
    """Return where the cgroup2 hierarchy is mounted: /sys/fs/cgroup, or below it on hosts with both versions."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(target)
    return None


def base_root(included: str = INCLUDED, suite: str = SUITE) -> Path:
    """Return a clean root of the distribution with these packages, which mmdebstrap makes once."""
    target = CACHE / f"{suite}-{included.replace(',', '-')}"
    if target.exists():
        return target
    fresh = CACHE / f".{os.getpid()}"
    CACHE.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"]
    command += [f"--include={included}", suite, fresh]
    subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
    # Each machine gets a new id at its first boot.
    (fresh / "etc/machine-id").write_text("uninitialized\n")
    fresh.rename(target)
    return target


class Machine:
    """One boot of the root; `packages` is visible in it as /packages."""

    def __init__(self, root: Path, packages: Path) -> None:
        hierarchy = cgroup2_root()
        assert hierarchy is not None
        self._group = hierarchy / f"dra-agent-packages-{os.getpid()}"
        self._group.mkdir()
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        # The cgroup namespace begins at the group of the process that creates it.
        joined = f"echo $$ > {self._group}/cgroup.procs && exec unshare {' '.join(namespaces)} --fork --kill-child "
        command = f"{joined} sh {BOOT} {root} {packages}"
        self._log = (packages / "boot.log").open("wb")
        self._process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        init = eventually(self._find_init, within=COMMAND_TIMEOUT_S)
        assert init is not None
        self._init = init
        eventually(self._is_up, within=COMMAND_TIMEOUT_S)

    def _find_init(self) -> int | None:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in children:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                return int(pid)
        return None

    def _is_up(self) -> bool:
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def run(self, *command: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine; fails with its output if `check`."""
        entered = ["nsenter", f"--target={self._init}", "--all", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        result = subprocess.run(
            [*entered, "DEBIAN_FRONTEND=noninteractive", *command],
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert not check or result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}"
        return result

    def output(self, *command: str) -> str:
        """Run a command that must succeed and return its output."""
        return self.run(*command).stdout.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file, with its directory."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path, text=text)

    def files(self) -> set[str]:
        """Return all paths below the directories in which a package or its service may leave something."""
        return set(self.output("find", "/etc", "/usr", "/var", "/run", "/dev/shm", "-xdev").splitlines())

    def property(self, name: str) -> str:
        """Return a property of the service."""
        return self.output("systemctl", "show", "--value", f"--property={name}", "dra-agent.service")

    def journal(self) -> str:
        """Return the messages of the service."""
        return self.output("journalctl", "--no-pager", "--output=cat", "--unit=dra-agent.service")

    def close(self) -> None:
        """End all processes of the machine."""
        os.kill(self._init, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        eventually(self._remove_group, within=COMMAND_TIMEOUT_S)

    def _remove_group(self) -> bool:
        try:
            for path in sorted((path for path in self._group.rglob("*") if path.is_dir()), reverse=True):
                path.rmdir()
            self._group.rmdir()
        except OSError:
            return False
        return True
