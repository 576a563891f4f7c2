"""The systemd unit and `make install`."""

from __future__ import annotations

import importlib.util
import marshal
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_agent.agent.config import load_config

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd/dra-agent.service"
MAX_EXPOSURE = 4.0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_exposure_level_of_the_unit_is_low() -> None:
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", UNIT], capture_output=True, text=True
    )
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd-analyze does not support offline analysis")
    level = re.search(r"exposure level for dra-agent.service: ([0-9.]+)", result.stdout)
    assert level, result.stdout + result.stderr
    assert float(level[1]) <= MAX_EXPOSURE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_every_line_of_the_unit() -> None:
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", UNIT], capture_output=True, text=True)
    errors = [line for line in result.stderr.splitlines() if UNIT.name in line and "not executable" not in line]
    assert errors == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["devices.conf", "kubernetes.conf", "mig.conf", "mps.conf", "net.conf"])
@pytest.mark.parametrize("added", ["", "Nonsense=1\n"])
def test_systemd_accepts_every_line_of_the_drop_ins(tmp_path: Path, name: str, added: str) -> None:
    shutil.copy(UNIT, tmp_path)
    drop_in = tmp_path / "dra-agent.service.d" / name
    drop_in.parent.mkdir()
    drop_in.write_text((ROOT / "systemd" / name).read_text() + added)
    command: list[str | Path] = ["systemd-analyze", "verify", "--man=no", tmp_path / UNIT.name]
    result = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in result.stderr.splitlines() if name in line]
    assert bool(errors) == bool(added), errors


def test_the_devices_drop_in_permits_device_changes() -> None:
    unit, drop_in = UNIT.read_text(), (ROOT / "systemd/devices.conf").read_text()
    for closed, opened in (
        ("ProtectKernelTunables=yes", "ProtectKernelTunables=no"),
        ("ProtectProc=invisible", "ProtectProc=default"),
    ):
        assert closed in unit and opened in drop_in
    allowed = re.search(r"^CapabilityBoundingSet=(.*)$", drop_in, re.MULTILINE)
    # Directories of processes of other users are private (proc(5)): reading them needs this capability besides ptrace.
    assert allowed and {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"} <= set(allowed[1].split())


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize("name", ["devices.conf", "net.conf"])
def test_a_drop_in_permits_to_search_processes_of_other_users(name: str) -> None:
    """A device whose users are unknown is not changed, so that every claim would fail."""
    allowed = re.search(r"^CapabilityBoundingSet=(.*)$", (ROOT / "systemd" / name).read_text(), re.MULTILINE)
    assert allowed
    capabilities = ",".join(["-all", *(f"+{one.removeprefix('CAP_').lower()}" for one in allowed[1].split())])
    search = """
import sys
from dra_agent.deadline import Deadline
from dra_agent.device_setup.open_files import DeviceNode, processes_holding
from dra_agent.host import Host
holders = processes_holding(Host(), [DeviceNode("/dev/null", (1, 3))], Deadline.of(60))
print([one.node for one in holders.found if one.pid == int(sys.argv[1])], holders.unread.get(int(sys.argv[1])))
"""
    with subprocess.Popen(["sleep", "60"], user=65534, stdin=subprocess.DEVNULL) as process:
        try:
            restricted = ["setpriv", "--inh-caps", "-all", "--bounding-set", capabilities]
            command = [*restricted, sys.executable, "-c", search, str(process.pid)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        finally:
            process.kill()
    assert (done.stdout, done.stderr) == ("['/dev/null'] None\n", "")


def test_every_exemption_has_a_reason() -> None:
    text = UNIT.read_text()
    for setting in ("User=root", "PrivateDevices=", "ProcSubset=", "PrivateNetwork=", "RestrictAddressFamilies"):
        assert re.search(rf"^# .*{setting}|^# .*\n{setting}", text, re.MULTILINE), f"{setting} has no reason"


def test_the_example_configuration_is_valid() -> None:
    import argparse

    example = ROOT / "systemd/config.toml"
    config = load_config(argparse.Namespace(config=example), {})
    assert config.standalone


def test_commented_settings_of_the_example_are_valid(tmp_path: Path) -> None:
    import argparse

    from dra_agent.inventory.rules import Rules

    text = (ROOT / "systemd/config.toml").read_text()
    lines = [re.sub(r"^# (?=[a-z_]+ = |\[)", "", line) for line in text.splitlines()]
    file = tmp_path / "config.toml"
    file.write_text("\n".join(lines))
    config = load_config(argparse.Namespace(config=file), {})
    assert config.inventory.exclude
    assert config.inventory.attributes
    Rules(config.inventory, config.driver_name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    destdir = tmp_path_factory.mktemp("dest")
    result = subprocess.run(
        [sys.executable, ROOT / "deploy/install.py", "--destdir", destdir, "--prefix", "/opt/dra"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return destdir


def test_the_installed_command_runs_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    launcher = installed / "opt/dra/bin/dra-agent"
    assert launcher.stat().st_mode & 0o777 == 0o755
    # Under DESTDIR the library is not at the path in the launcher.
    launcher_copy = tmp_path / "dra-agent"
    launcher_copy.write_text(launcher.read_text().replace("/opt/dra/lib", str(installed / "opt/dra/lib")))
    launcher_copy.chmod(0o755)
    version = subprocess.run([launcher_copy, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert version.stdout.startswith("dra-agent "), version.stderr
    tree = subprocess.run(
        [launcher_copy, "topology", "--simulate", "dgx-h100", "-o", "json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert '"0000:1b:00.0"' in tree.stdout, tree.stderr


def test_the_library_has_all_dependencies_and_no_test_tools(installed: Path) -> None:
    library = {path.name for path in (installed / "opt/dra/lib/dra-agent").iterdir()}
    assert {"dra_agent", "msgspec", "pynvml.py", "prometheus_client", "pyroute2", "yaml", "rich"} <= library
    assert library.isdisjoint({"pytest", "mypy", "hypothesis", "maturin", "ruff"})


def test_installed_files_are_compiled(installed: Path) -> None:
    library = installed / "opt/dra/lib/dra-agent"
    sources = [path for path in library.rglob("*.py") if "lib2to3" not in path.parts]
    without = [path for path in sources if not Path(importlib.util.cache_from_source(str(path))).exists()]
    assert len(sources) > 500 and not without, without
    compiled = Path(importlib.util.cache_from_source(str(library / "dra_agent/agent/agent.py"))).read_bytes()
    assert compiled[4:8] == b"\x01\0\0\0", "unchecked: a package manager changes the time of the source"
    assert marshal.loads(compiled[16:]).co_filename == "/opt/dra/lib/dra-agent/dra_agent/agent/agent.py"


def test_unit_tmpfiles_and_configuration_are_installed(installed: Path) -> None:
    unit = (installed / "usr/lib/systemd/system/dra-agent.service").read_text()
    assert "ExecStart=/opt/dra/bin/dra-agent run --config /etc/dra-agent/config.toml" in unit
    assert "/run/cdi" in (installed / "usr/lib/tmpfiles.d/dra-agent.conf").read_text()
    assert (installed / "etc/dra-agent/config.toml").exists()


def test_a_second_install_keeps_the_configuration(installed: Path, tmp_path: Path) -> None:
    destdir = tmp_path / "dest"
    shutil.copytree(installed, destdir, symlinks=True)
    config = destdir / "etc/dra-agent/config.toml"
    config.write_text("standalone = true\n# mine\n")
    # Byte code, which takes most of the time of an installation, does not concern the configuration.
    options: list[str | Path] = ["--destdir", destdir, "--prefix", "/opt/dra", "--no-compile"]
    command = [sys.executable, ROOT / "deploy/install.py", *options]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0
    assert "kept" in result.stdout
    assert "# mine" in config.read_text()


def test_a_reload_sends_the_signal_that_the_agent_handles() -> None:
    check = "ExecReload=/usr/local/bin/dra-agent config check /etc/dra-agent/config.toml"
    assert f"\n{check}\nExecReload=/bin/kill -HUP $MAINPID\n" in UNIT.read_text()
