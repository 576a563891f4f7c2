"""Debian packages of other suites, downloaded and unpacked with a state of apt's own: nothing is installed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR = os.environ.get("DRA_AGENT_TEST_VM_MIRROR", "http://deb.debian.org")
"""Has /debian and /debian-security."""
DOWNLOAD_TIMEOUT_S = 1800.0
_CONFIGURATION = """\
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "-";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::Retries "3";
Debug::NoLocking "true";
"""


class DownloadError(Exception):
    """A package cannot be fetched; the message has the command and its errors."""


class Apt:
    """The packages of some suites of Debian, with the lists in a folder."""

    def __init__(self, folder: Path, suites: Sequence[str]) -> None:
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "sources.list").write_text("".join(map(_source, suites)))
        (folder / "apt.conf").write_text(_CONFIGURATION.format(folder=folder.resolve()))
        self._folder = folder
        self._run("apt-get", "update", "--quiet=2")

    def newest(self, package: str) -> tuple[str, list[str]]:
        """Return the newest version of a package, and the packages of which it consists: it and its dependencies."""
        shown = self._run("apt-cache", "show", package)
        # The first paragraph is the newest one.
        fields = dict(re.findall(r"^(\S+): (.*)$", shown.partition("\n\n")[0], re.MULTILINE))
        depends = [word for name in ("Pre-Depends", "Depends") for word in re.split(r", |\| ", fields.get(name, ""))]
        return fields["Version"], [word.split(" ")[0] for word in depends if word]

    def with_dependencies(self, package: str) -> list[Path]:
        """Download a package with all packages that it needs and this host lacks."""
        self._run("apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", "--download-only", package)
        return sorted((self._folder / "cache/archives").glob("*.deb"))

    def download(self, package: str, version: str) -> Path:
        """Download one package."""
        folder = self._folder / "packages" / package
        folder.mkdir(parents=True)
        self._run("apt-get", "download", "--quiet=2", f"{package}={version}", cwd=folder)
        (path,) = folder.glob("*.deb")
        return path

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        result = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | {"APT_CONFIG": str(self._folder.resolve() / "apt.conf"), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_TIMEOUT_S,
        )
        if result.returncode != 0:
            raise DownloadError(f"{' '.join(command)}: {result.stderr.strip() or result.stdout.strip()}")
        return result.stdout


def _source(suite: str) -> str:
    archive = "debian-security" if suite.endswith("-security") else "debian"
    return f"deb [signed-by={KEYRING}] {MIRROR}/{archive} {suite} main\n"


def unpack(package: Path, into: Path) -> None:
    """Unpack the files of a package below a directory."""
    into.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "--extract", package, into], check=True)
