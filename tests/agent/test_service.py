"""The systemd unit and `make install`."""

from __future__ import annotations

import importlib.util
import marshal
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_agent.agent.config import load_config

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd/dra-agent.service"
MOST_EXPOSED = 4.0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_hardened() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", UNIT], capture_output=True, text=True
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a unit file offline")
    level = re.search(r"exposure level for dra-agent.service: ([0-9.]+)", done.stdout)
    assert level, done.stdout + done.stderr
    assert float(level[1]) <= MOST_EXPOSED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_every_line_of_the_unit() -> None:
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", UNIT], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line and "not executable" not in line]
    assert complaints == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["devices.conf", "kubernetes.conf", "mig.conf", "mps.conf", "net.conf"])
@pytest.mark.parametrize("added", ["", "Nonsense=1\n"])
def test_systemd_understands_every_line_of_the_drop_ins(tmp_path: Path, name: str, added: str) -> None:
    shutil.copy(UNIT, tmp_path)
    drop_in = tmp_path / "dra-agent.service.d" / name
    drop_in.parent.mkdir()
    drop_in.write_text((ROOT / "systemd" / name).read_text() + added)
    command: list[str | Path] = ["systemd-analyze", "verify", "--man=no", tmp_path / UNIT.name]
    done = subprocess.run(command, capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if name in line]
    assert bool(complaints) == bool(added), complaints


def test_the_drop_in_for_devices_opens_what_a_change_of_them_needs() -> None:
    unit, drop_in = UNIT.read_text(), (ROOT / "systemd/devices.conf").read_text()
    for closed, opened in (
        ("ProtectKernelTunables=yes", "ProtectKernelTunables=no"),
        ("ProtectProc=invisible", "ProtectProc=default"),
    ):
        assert closed in unit and opened in drop_in
    allowed = re.search(r"^CapabilityBoundingSet=(.*)$", drop_in, re.MULTILINE)
    # Folders of other users' processes are theirs alone (proc(5)): that takes the right to read them beside ptrace's.
    assert allowed and {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"} <= set(allowed[1].split())


def test_each_thing_left_open_is_explained() -> None:
    text = UNIT.read_text()
    for open_ in ("User=root", "PrivateDevices=", "ProcSubset=", "PrivateNetwork=", "RestrictAddressFamilies"):
        assert re.search(rf"^# .*{open_}|^# .*\n{open_}", text, re.MULTILINE), f"{open_} has no reason"


def test_the_example_configuration_is_one() -> None:
    import argparse

    example = ROOT / "systemd/config.toml"
    config = load_config(argparse.Namespace(config=example), {})
    assert config.standalone


def test_what_the_example_has_commented_out_would_be_accepted_too(tmp_path: Path) -> None:
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
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/install.py", "--destdir", destdir, "--prefix", "/opt/dra"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return destdir


def test_the_installed_command_runs_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    launcher = installed / "opt/dra/bin/dra-agent"
    assert launcher.stat().st_mode & 0o777 == 0o755
    # Staged below DESTDIR the library is elsewhere than the launcher says.
    moved = tmp_path / "dra-agent"
    moved.write_text(launcher.read_text().replace("/opt/dra/lib", str(installed / "opt/dra/lib")))
    moved.chmod(0o755)
    version = subprocess.run([moved, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert version.stdout.startswith("dra-agent "), version.stderr
    tree = subprocess.run(
        [moved, "topology", "--simulate", "dgx-h100", "-o", "json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert '"0000:1b:00.0"' in tree.stdout, tree.stderr


def test_the_library_holds_what_the_agent_needs_and_no_test_tool(installed: Path) -> None:
    library = {path.name for path in (installed / "opt/dra/lib/dra-agent").iterdir()}
    assert {"dra_agent", "msgspec", "pynvml.py", "prometheus_client", "pyroute2", "yaml", "rich"} <= library
    assert library.isdisjoint({"pytest", "mypy", "hypothesis", "maturin", "ruff"})


def test_what_is_installed_is_compiled_because_the_service_cannot_write(installed: Path) -> None:
    library = installed / "opt/dra/lib/dra-agent"
    sources = [path for path in library.rglob("*.py") if "lib2to3" not in path.parts]
    without = [path for path in sources if not Path(importlib.util.cache_from_source(str(path))).exists()]
    assert len(sources) > 500 and not without, without
    compiled = Path(importlib.util.cache_from_source(str(library / "dra_agent/agent/agent.py"))).read_bytes()
    assert compiled[4:8] == b"\x01\0\0\0", "never compared with the source, whose time a package manager changes"
    assert marshal.loads(compiled[16:]).co_filename == "/opt/dra/lib/dra-agent/dra_agent/agent/agent.py"


def test_unit_tmpfiles_and_configuration_are_in_place(installed: Path) -> None:
    unit = (installed / "usr/lib/systemd/system/dra-agent.service").read_text()
    assert "ExecStart=/opt/dra/bin/dra-agent run --config /etc/dra-agent/config.toml" in unit
    assert "/run/cdi" in (installed / "usr/lib/tmpfiles.d/dra-agent.conf").read_text()
    assert (installed / "etc/dra-agent/config.toml").exists()


def test_a_second_install_keeps_the_configuration(installed: Path) -> None:
    config = installed / "etc/dra-agent/config.toml"
    config.write_text("standalone = true\n# mine\n")
    command: list[str | Path] = [
        sys.executable,
        ROOT / "deploy/install.py",
        "--destdir",
        installed,
        "--prefix",
        "/opt/dra",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert "kept" in done.stdout
    assert "# mine" in config.read_text()


def test_a_reload_is_the_signal_that_the_agent_handles() -> None:
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in UNIT.read_text()
