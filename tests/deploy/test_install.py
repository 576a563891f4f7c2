"""`make install` and `make uninstall`: interpreters, failures, and what remains."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_agent.cli.completion import script
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry

ROOT = Path(__file__).resolve().parents[2]
DEBIAN_PYTHON = Path("/usr/bin/python3")
DEADLINE_S = 300
"""Long: compiles several hundred files, on a possibly busy machine."""


def run_installer(prefix: Path, *options: str | Path, python: str | Path = sys.executable) -> list[str]:
    """Install below `prefix`, so that the command can run there, and return the messages."""
    result = attempt(prefix, *options, python=python)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def attempt(
    prefix: Path, *options: str | Path, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    folders = [f"--{name}={prefix / name}" for name in ("prefix", "sysconfdir", "unitdir", "tmpfilesdir")]
    command = [python, ROOT / "deploy/install.py", *folders, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def files(folder: Path) -> dict[str, int]:
    """Return each file of a tree with its inode, which a replacement changes."""
    return {str(path): path.lstat().st_ino for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation that tests leave as it is; without byte code, which takes most of the time."""
    destdir = tmp_path_factory.mktemp("installed")
    run_installer(destdir, "--no-compile")
    return destdir


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--python", "/bin/false"), "/bin/false does not work"),
        (("--python", "/nonexistent/python3"), "/nonexistent/python3 does not work: No such file or directory"),
    ],
)
def test_a_failed_installation_leaves_the_former_one(installed: Path, options: tuple[str, ...], message: str) -> None:
    before = files(installed)
    result = attempt(installed, *options)
    assert result.returncode == 1
    assert result.stderr.startswith(f"install: {message}"), result.stderr
    assert files(installed) == before


def test_a_target_that_cannot_be_written_leaves_the_former_installation(installed: Path, tmp_path: Path) -> None:
    # The last target is a file where a directory is needed.
    blocked = installed / "prefix/share/doc/dra-agent"
    shutil.move(blocked, tmp_path / "documents")
    blocked.write_text("")
    before = files(installed)
    try:
        result = attempt(installed, "--no-compile")
        assert result.returncode == 1 and str(blocked) in result.stderr
        assert files(installed) == before
    finally:
        blocked.unlink()
        shutil.move(tmp_path / "documents", blocked)


@pytest.mark.skipif(not DEBIAN_PYTHON.exists(), reason="needs the system's Python in /usr/bin")
def test_an_environment_of_the_systems_python_installs_with_it(tmp_path: Path) -> None:
    # Debian's Python has /usr/bin/python3 and /usr/bin/python3.N, but no /usr/bin/python.
    version: list[str | Path] = [DEBIAN_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    minor = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    if minor != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"the system's Python is {minor}, and the libraries of the build are for another version")
    # The environment of the build, with its libraries, under the other interpreter.
    environment = tmp_path / "environment"
    folder = environment / f"lib/python{minor}"
    folder.mkdir(parents=True)
    (folder / "site-packages").symlink_to(Path(sys.prefix) / f"lib/python{minor}/site-packages")
    (environment / "bin").mkdir()
    (environment / "bin/python").symlink_to(DEBIAN_PYTHON)
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    run_installer(tmp_path, "--no-compile", python=environment / "bin/python")
    launcher = tmp_path / "prefix/bin/dra-agent"
    interpreter = launcher.read_text().splitlines()[0].removeprefix("#!").removesuffix(" -I")
    assert Path(interpreter).parent == Path("/usr/bin")
    version_line = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert version_line.stdout.startswith("dra-agent "), version_line.stderr


def test_the_kubectl_plugin_and_completions_are_installed(installed: Path) -> None:
    plugin = subprocess.run(
        [installed / "prefix/bin/kubectl-dra", "--version"], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert plugin.stdout.startswith("kubectl-dra "), plugin.stderr
    share = installed / "prefix/share"
    for path, shell in (
        ("bash-completion/completions/dra-agent", "bash"),
        ("zsh/site-functions/_dra-agent", "zsh"),
        ("fish/vendor_completions.d/dra-agent.fish", "fish"),
    ):
        assert (share / path).read_text() == script(shell)


def test_drop_ins_name_their_installed_path(installed: Path) -> None:
    examples = installed / "prefix/share/doc/dra-agent/examples"
    assert {path.name for path in examples.iterdir()} == {path.name for path in (ROOT / "systemd").glob("*.conf")}
    for path in examples.iterdir():
        assert f"install -D -m 0644 {path} /etc/systemd/system/dra-agent.service.d/{path.name}" in path.read_text()


@pytest.mark.parametrize("simulate", [False, True])
def test_make_install_has_the_simulated_library_on_request_only(tmp_path: Path, simulate: bool) -> None:
    command = ["make", "--dry-run", "--no-print-directory", "install", f"DESTDIR={tmp_path}"]
    printed = subprocess.run(
        [*command, *(["SIMULATE=1"] if simulate else [])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    (line,) = (one for one in printed.splitlines() if "deploy/install.py" in one)
    without = [word for word in line.split() if word.startswith("--without")]
    run_installer(tmp_path, "--no-compile", *without)
    found = [path.name for path in tmp_path.rglob("libnvidia-ml*")]
    assert found == (["libnvidia-ml.so.1"] if simulate else [])


def test_uninstall_keeps_the_configuration(tmp_path: Path) -> None:
    run_installer(tmp_path, "--no-compile")
    messages = run_installer(tmp_path, "--uninstall")
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == ["config.toml"]
    assert any(line.startswith(f"kept      {tmp_path / 'sysconfdir/dra-agent'};") for line in messages)


def test_purge_refuses_while_claims_are_held(tmp_path: Path) -> None:
    state, specs = tmp_path / "var/lib/dra-agent", tmp_path / "run/cdi"
    specs.mkdir(parents=True)
    (specs / "vendor.json").write_text("{}")
    (specs / "dra-agent.internal-claim_uid-1.json").write_text("{}")
    state.mkdir(parents=True)
    for path in ("run/dra-agent", "dev/shm/dra-agent"):
        (tmp_path / path).mkdir(parents=True)
    entry = LedgerEntry("uid-1", "default", "training", (HeldDevice("node/gpu", "gpu-0", "gpu"),))
    with JournalLedger(state, "boot-1") as ledger:
        ledger.start(entry, durable=True)
    purge: list[str | Path] = [
        sys.executable,
        ROOT / "deploy/install.py",
        "--destdir",
        tmp_path,
        "--uninstall",
        "--purge",
    ]
    before = files(tmp_path)
    result = subprocess.run(purge, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 1
    assert "claims are held: default/training." in result.stderr
    assert set(files(tmp_path)) == set(before)
    with JournalLedger(state, "boot-1") as ledger:
        ledger.release("uid-1")
    subprocess.run(purge, check=True, capture_output=True, timeout=DEADLINE_S)
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == ["vendor.json"]
    assert not list(tmp_path.rglob("dra-agent*"))
