"""Child processes of an installed agent that starts in a directory prepared by another user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("dra_agent/__init__", "os", "json", "sitecustomize", "usercustomize", "msgspec", "runpy")
DEADLINE_S = 120
"""Long: several interpreters start one after the other, on a possibly busy machine."""

MOVES_AN_INTERFACE = """
from dra_agent.device_setup.rtnetlink import Describe, HostInterface, query
no_such_link = HostInterface(2**31 - 1, "02:fc:00:00:00:01")
print(query(Describe(no_such_link, "no-such-link0", "/sys/class/net")).state)
"""
ACCESSES_SYSFS = """
import sys
from pathlib import Path
from dra_agent.device_setup.sysfs_writer import RealSysfsWriter
Path(sys.argv[1]).mkdir()
Path(sys.argv[1], "driver_override").write_text("vfio-pci")
print(RealSysfsWriter(Path(sys.argv[1])).read("driver_override"))
"""
STARTS_MPS = """
import sys
from pathlib import Path
from dra_agent.device_setup.mps.daemon import MpsDaemon
from dra_agent.device_setup.mps.paths import MpsPaths
place = MpsPaths(Path(sys.argv[1], "gpu"), Path(sys.argv[1], "shm"))
place.make()
MpsDaemon(Path("/bin/true"), place, "GPU-1", own_shm=False, proc=Path("/proc"), deadline=60).start()
print("started")
"""
LOADS_NVML = """
import sys
from pathlib import Path
import pynvml
import dra_agent
from dra_agent.nvml.client import NvmlWorker
library = Path(dra_agent.__file__).parent / "simulate/lib/libnvidia-ml.so.1"
made = NvmlWorker(pynvml, library, 1)
print("pid", made.pid > 0)
made.close()
"""
RUNS_NVIDIA_SMI = """
import subprocess, sys
from pathlib import Path
from dra_simulate.nvidia_smi import install
Path(sys.argv[1]).mkdir(exist_ok=True)
done = subprocess.run([install(Path(sys.argv[1])), "-L"], capture_output=True, text=True)
print(done.returncode, done.stderr)
assert "Traceback" not in done.stderr and "No module" not in done.stderr, done.stderr
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an agent that is installed below a prefix."""
    prefix = tmp_path_factory.mktemp("prefix")
    folders = [f"--{name}={prefix / name}" for name in ("sysconfdir", "unitdir", "tmpfilesdir")]
    command: list[str | Path] = [
        sys.executable,
        ROOT / "deploy/install.py",
        "--destdir",
        "/",
        "--prefix",
        prefix,
        *folders,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 0, result.stderr
    return prefix / "bin/dra-agent"


class HostileDirectory:
    """A directory whose modules record that they were executed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder / "was-run"
        for name in MODULES:
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"open({str(self.marker)!r}, 'a').write(__name__ + '\\n')\n")
        user = folder / "home/.local/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        user.mkdir(parents=True)
        (user / "evil.pth").write_text(f"import builtins; builtins.open({str(self.marker)!r}, 'a').write('pth')\n")

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": f"{self.folder}{os.pathsep}",
            "PYTHONUSERBASE": str(self.folder / "home/.local"),
            "HOME": str(self.folder / "home"),
        }

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def executed_modules(self) -> list[str]:
        return self.marker.read_text().split() if self.marker.exists() else []


@pytest.fixture
def hostile_directory(tmp_path: Path) -> HostileDirectory:
    return HostileDirectory(tmp_path / "hostile")


@pytest.mark.parametrize(
    ("script_text", "expected"),
    [
        (MOVES_AN_INTERFACE, "away"),
        (ACCESSES_SYSFS, "vfio-pci"),
        (STARTS_MPS, "started"),
        (LOADS_NVML, "pid True"),
        (RUNS_NVIDIA_SMI, ""),
    ],
    ids=["interface moves", "access to /sys", "MPS launcher", "NVML", "simulated nvidia-smi"],
)
def test_child_processes_run_no_code_of_the_current_directory(
    launcher: Path, hostile_directory: HostileDirectory, tmp_path: Path, script_text: str, expected: str
) -> None:
    head = launcher.read_text().partition("from dra_agent")[0]
    script = tmp_path / "program"
    script.write_text(head + script_text)
    script.chmod(0o755)
    result = hostile_directory.run(script, str(tmp_path / "work"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(expected), (result.stdout, result.stderr)
    assert hostile_directory.executed_modules() == []


def test_installed_command_runs_no_code_of_the_current_directory(
    launcher: Path, hostile_directory: HostileDirectory
) -> None:
    result = hostile_directory.run(launcher, "devices", "-o", "json")
    assert "No module named" not in result.stdout + result.stderr
    assert result.returncode in (0, 1), result.stderr
    assert hostile_directory.executed_modules() == []
