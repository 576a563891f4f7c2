"""What a machine lacks for the build is one line, with the repair, before anything long starts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deploy.package_index import DEFAULT, index, is_reachable

from eventually import DEADLINE_S
from unprivileged import UNPRIVILEGED, script

ROOT = Path(__file__).resolve().parents[2]
GOOD = {
    "uname": "echo Linux",
    # It aligns its columns, so that more than one space is between them.
    "df": "echo head; echo '/dev/sda1        9000000         1   {free_kib}      50% /'",
    "cc": "while [ $# -gt 0 ]; do [ $1 != -o ] || : > $2; shift; done",
    "cargo": "echo 'cargo 1.95.0 (f2d3ce0bd 2026-03-21)'",
    "python3": "case $1:$2 in *version_info*) echo '311 3.11' ;; *) : ;; esac",
}
"""Programs of a machine on which the build can begin."""
ENOUGH_KIB = 4 << 20


@dataclass
class Machine:
    """A checkout with the files that the preflight reads, and the programs in PATH."""

    root: Path
    programs: dict[str, str] = field(default_factory=lambda: dict(GOOD))
    free_kib: int = ENOUGH_KIB
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        binaries = self.root.parent / "bin"
        for name, text in self.programs.items():
            script(binaries / name, text.format(free_kib=self.free_kib))
        for name in ("sh", "sed", "mktemp", "rm", "id", "find", "grep", "make"):
            found = shutil.which(name)
            assert found is not None, name
            (binaries / name).symlink_to(found)
        environment = {"PATH": str(binaries), "CARGO": "cargo", "VENV": ".venv", **self.environment}
        return subprocess.run(
            [*prefix, *(command or ("sh", "deploy/preflight.sh"))],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )


def checkout(folder: Path) -> Machine:
    """Copy the files that `make` needs until it builds."""
    (folder / "deploy").mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "Cargo.toml", "Cargo.lock"):
        shutil.copy(ROOT / name, folder)
    for name in ("preflight.sh", "package_index.py"):
        shutil.copy(ROOT / "deploy" / name, folder / "deploy")
    for crate in ("hook", "lab/nvml-fake"):
        (folder / "rust" / crate).mkdir(parents=True)
    return Machine(folder)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return checkout(tmp_path / "checkout")


def test_a_machine_that_has_everything_prints_nothing(machine: Machine) -> None:
    done = machine.run()
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    ("program", "text", "missing", "repair"),
    [
        ("cc", None, "no C compiler (cc)", "apt-get install gcc libc6-dev"),
        ("cc", "exit 1", "cc cannot link a static program", "apt-get install libc6-dev"),
        ("cargo", None, "no Rust (cargo)", "install rustup from https://rustup.rs"),
        ("cargo", "echo 'cargo 1.63.0'", "cargo 1.63.0 is older than 1.88", "install rustup"),
        ("cargo", "echo 'error: no toolchain' >&2; exit 1", "does not run (error: no toolchain)", "rustup toolchain"),
        ("python3", None, "no Python (python3)", "apt-get install python3 python3-venv"),
        ("python3", "exit 127", "python3 does not run", "put another python3 first in PATH"),
        ("python3", "echo '309 3.9'", "python3 is 3.9, older than 3.11", "put a newer python3 first in PATH"),
        (
            "python3",
            "case $2 in *version*) echo '311 3.11' ;; *ensurepip*) exit 1 ;; esac",
            "python3 has no venv module",
            "apt-get install python3-venv",
        ),
        (
            "python3",
            "case $1:$2 in *version*) echo '311 3.11' ;; *index*) echo https://pypi.org; exit 1 ;; esac",
            "no network to https://pypi.org",
            "name a proxy (https_proxy)",
        ),
        ("uname", "echo Darwin", "this is Darwin", "the agent needs Linux"),
    ],
)
def test_what_is_missing_is_one_line_with_the_repair(
    machine: Machine, program: str, text: str | None, missing: str, repair: str
) -> None:
    machine.programs.pop(program)
    if text is not None:
        machine.programs[program] = text
    done = machine.run()
    assert done.stderr == "" and done.stdout.count("\n") == 1
    assert done.stdout.startswith("cannot build here: ") and ";" not in done.stdout, "nothing else is missing"
    assert missing in done.stdout and repair in done.stdout


def test_everything_that_is_missing_is_in_the_same_line(machine: Machine) -> None:
    machine.programs = {name: GOOD[name] for name in ("uname", "df")}
    machine.free_kib = ENOUGH_KIB - 1
    (line,) = machine.run().stdout.splitlines()
    assert [part.split(":")[0] for part in line.removeprefix("cannot build here: ").split("; ")] == [
        "4095 MiB of disk are free, and the build needs 4 GiB",
        "no C compiler (cc)",
        "no Rust (cargo)",
        "no Python (python3)",
    ]


def test_a_tree_that_is_built_already_needs_less_disk(machine: Machine) -> None:
    machine.free_kib = 1 << 20
    assert "disk" in machine.run().stdout
    (machine.root / "target/release").mkdir(parents=True)
    shutil.rmtree(machine.root.parent / "bin")
    assert machine.run().stdout == ""


def test_a_python_that_is_newer_than_the_tested_ones_is_named_and_used(machine: Machine) -> None:
    machine.programs["python3"] = "case $2 in *version_info*) echo '315 3.15' ;; esac"
    done = machine.run()
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert "python3 is 3.15, newer than all that are tested (3.11 to 3.14)" in done.stderr


def test_the_python_of_an_existing_venv_counts(machine: Machine) -> None:
    (machine.root / ".venv").mkdir()
    script(machine.root / ".venv/bin/python", "case $2 in *version*) echo '311 3.11' ;; esac")
    machine.programs["python3"] = "echo '309 3.9'"
    assert machine.run().stdout == ""


def test_a_checkout_of_another_user_is_named(short_path: Path) -> None:
    short_path.chmod(0o755)
    machine = checkout(short_path / "checkout")
    machine.root.chmod(0o555)
    as_other = (shutil.which("setpriv") or "setpriv", f"--reuid={UNPRIVILEGED}", "--clear-groups")
    done = machine.run(prefix=as_other if os.geteuid() == 0 else ())
    machine.root.chmod(0o755)
    assert "cannot write .: change its owner, or clone as this user" in done.stdout


@pytest.mark.parametrize("goal", ["demo", "test"])
@pytest.mark.parametrize(("name", "missing"), [("checkout", "no C compiler"), ("my checkout", "the path")])
def test_make_prints_the_line_and_starts_nothing(goal: str, name: str, missing: str, tmp_path: Path) -> None:
    machine = checkout(tmp_path / name)
    if name == "checkout":
        del machine.programs["cc"]
    done = machine.run("make", goal)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert f"*** cannot build here: {missing}" in done.stderr
    assert not (machine.root / ".venv").exists() and not (machine.root / "target").exists()


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ({}, {}, DEFAULT),
        ({"pip.conf": "[global]\nindex-url = https://mirror/%41\n"}, {}, "https://mirror/%41"),
        ({"pip.conf": "[global]\nindex-url = https://mirror/\n"}, {"PIP_INDEX_URL": "https://own/"}, "https://own/"),
        ({"a": "[global]\nindex-url = https://a/\n", "b": "[install]\nindex-url = https://b/\n"}, {}, "https://b/"),
        ({"pip.conf": "[install]\nno-index = true\n"}, {}, None),
        ({}, {"PIP_NO_INDEX": "1"}, None),
        ({"pip.conf": "[global]\nproxy = proxy:3128\n"}, {}, None),
        ({"pip.conf": "not a configuration"}, {}, DEFAULT),
    ],
)
def test_the_index_is_the_one_of_pip(
    files: dict[str, str], environment: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert index(environment, [*(tmp_path / name for name in files), tmp_path / "missing"]) == expected


@pytest.fixture
def answering() -> Iterator[int]:
    """The port of a server that answers each connection with a line of HTTP, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 503 Busy\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(DEADLINE_S)


def test_a_server_that_answers_with_an_error_or_without_a_trusted_certificate_is_reachable(answering: int) -> None:
    assert is_reachable(f"http://127.0.0.1:{answering}/simple/", DEADLINE_S)
    assert is_reachable(f"https://127.0.0.1:{answering}/simple/", DEADLINE_S), "the certificate is for pip to judge"


def test_a_port_without_a_server_and_a_text_that_is_no_url_are_not_reachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not is_reachable(f"http://127.0.0.1:{unused.getsockname()[1]}/", DEADLINE_S)
    assert not is_reachable("nonsense", DEADLINE_S)


def test_the_versions_are_those_of_the_projects_files() -> None:
    text = (ROOT / "deploy/preflight.sh").read_text()
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text() and "MIN_PYTHON=311" in text
    assert 'rust-version = "1.88"' in (ROOT / "Cargo.toml").read_text() and "MIN_RUST=188" in text
    assert sys.version_info[:2] <= (3, 14)


def test_an_unreachable_index_is_the_one_that_the_preflight_names(machine: Machine) -> None:
    machine.programs["python3"] = f'exec {sys.executable} "$@"'
    machine.environment = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple/", "HOME": os.devnull}
    assert "no network to http://127.0.0.1:1/simple/" in machine.run().stdout
