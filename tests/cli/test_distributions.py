"""The agent without the other distributions of this repository."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import dra_agent
import dra_cluster
import dra_simulate
from dra_agent.agent.distributions import CLUSTER, SIMULATE, Distribution, Simulation, load, simulation
from dra_agent.errors import UsageError
from eventually import DEADLINE_S
from loaded_modules import loaded_modules

ROOT = Path(__file__).parents[2]
OTHERS = ["dra_cluster", "dra_simulate"]
ALONE = """
import sys
sys.path[:] = [sys.argv.pop(1), *(folder for folder in sys.path if folder != sys.argv[1])]
del sys.argv[1]
from dra_agent.cli.main import main
sys.exit(main())
"""
"""Runs the command with the Python packages of one folder in place of those of the repository."""
OF_A_CLUSTER = "needs the package dra-agent-cluster; pip install 'dra-agent[cluster]'"
SIMULATED = (
    "needs the package dra-agent-simulate; pip install 'dra-agent[simulate]', or use the debug variant of the image"
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the agent's package, and with no other of this repository."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "dra_agent").symlink_to(ROOT / "python/dra_agent")
    return folder


def run(alone: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, "-c", ALONE, alone, ROOT / "python", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capacity", "pod/train"], f"capacity: {OF_A_CLUSTER}"),
        (["ui", "--port", "0"], f"ui: {OF_A_CLUSTER}"),
        (["slices", "template", "--form", "karpenter"], f"slices template: {OF_A_CLUSTER}"),
        (["claim", "holders", "--all-nodes"], f"--all-nodes: {OF_A_CLUSTER}"),
        (["claims", "--all-nodes"], f"--all-nodes: {OF_A_CLUSTER}"),
        (["top", "--all-nodes", "--once"], f"top of a cluster: {OF_A_CLUSTER}"),
        (["explain", "pod/train", "--from", "cluster.json"], f"explain pod in a cluster: {OF_A_CLUSTER}"),
        (["explain", "-f", "examples/pods/pod.yaml"], f"explain of a pod: {OF_A_CLUSTER}"),
        (["simulate", "profiles"], f"simulate: {SIMULATED}"),
        (["simulate", "--help"], f"simulate: {SIMULATED}"),
        (["devices", "--simulate", "vm-1gpu"], f"--simulate: {SIMULATED}"),
        (["topology", "--simulate", "vm-1gpu"], f"--simulate: {SIMULATED}"),
    ],
)
def test_a_command_or_flag_says_in_one_line_what_to_install(
    alone: Path, arguments: Sequence[str], message: str
) -> None:
    done = run(alone, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"dra-agent: {message}\n")


def test_an_agent_on_a_simulated_host_does_not_start(alone: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'standalone = true\nsimulate = "vm-1gpu"\nstate_dir = "{tmp_path}/state"\n')
    done = run(alone, "run", "--config", config)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(SIMULATED)
    assert "Traceback" not in done.stderr


def test_other_commands_work(alone: Path, tmp_path: Path) -> None:
    host = dra_simulate.build("vm-1gpu", tmp_path)
    done = run(alone, "topology", "--sysfs-root", host.sysfs, "--dev-root", host.dev, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "0000:00:04.0" in done.stdout


def test_the_help_marks_commands_of_missing_distributions(alone: Path) -> None:
    done = run(alone, "--help")
    assert done.returncode == 0
    assert "(needs dra-agent-cluster)" in " ".join(done.stdout.split())
    assert "(needs dra-agent-simulate)" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [("dra-agent dev", ["devices"]), ("dra-agent claims --simulate ", []), ("dra-agent u", ["ui"])],
)
def test_words_are_completed(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    for name, value in {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "candidates"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }.items():
        monkeypatch.setenv(name, value)
    done = run(alone)
    assert done.returncode == 0, done.stderr
    assert [word.strip() for word in (tmp_path / "candidates").read_text().splitlines()] == expected


def test_a_folder_without_a_package_is_not_a_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dra_leftover/lib").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not Distribution("dra-leftover", "dra_leftover", "").is_installed
    assert CLUSTER.is_installed and SIMULATE.is_installed


def test_all_distributions_have_one_version() -> None:
    assert dra_cluster.__version__ == dra_simulate.__version__ == dra_agent.__version__


def test_a_distribution_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra_simulate, "__version__", "0.0.9")
    with pytest.raises(UsageError, match=rf"dra-agent-simulate 0\.0\.9 is not for dra-agent {dra_agent.__version__}"):
        load(SIMULATE, "command", "simulate")


def test_a_simulated_host_is_used_through_the_agents_interface(tmp_path: Path) -> None:
    simulated: Simulation = dra_simulate
    assert simulation() is simulated
    host = simulated.build(simulated.profiles()[0], tmp_path / simulated.folder_name("x"))
    assert simulated.driver_root(host.sysfs.parent, Path("/run/nvidia/driver")).is_dir()
    (device, *_) = (host.sysfs / "bus/pci/devices").iterdir()
    assert simulated.sysfs_writer(host.sysfs.parent).read(f"bus/pci/devices/{device.name}/vendor").startswith("0x")


@pytest.mark.parametrize("module", ["dra_agent.cli.main", "dra_agent.agent.agent", "dra_agent.agent.kubernetes_mode"])
def test_an_agent_loads_no_other_distribution(module: str) -> None:
    loaded = loaded_modules(f"import {module}")
    assert [name for name in loaded if name.partition(".")[0] in OTHERS] == []
