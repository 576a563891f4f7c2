"""The revision of the sources: how a build finds it, and where an installed agent shows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rendering import ROOT
from dra_agent import __version__, revision

SCRIPT = Path("deploy/revision.py")
FILE = Path("python/dra_agent/revision.txt")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit that contains the script."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path / "checkout"
    (root / "deploy").mkdir(parents=True)
    (root / FILE.parent).mkdir(parents=True)
    shutil.copy(ROOT / SCRIPT, root / SCRIPT)
    (root / ".gitignore").write_text(f"/{FILE}\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "first")
    return root


def git(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def write(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "DRA_AGENT_REVISION"}
    return subprocess.run(
        [sys.executable, root / SCRIPT], capture_output=True, text=True, check=False, env={**inherited, **environment}
    )


def test_a_build_of_a_commit_has_its_revision(checkout: Path) -> None:
    assert write(checkout).returncode == 0
    head = git(checkout, "rev-parse", "HEAD")
    assert revision.read(checkout / FILE) == head
    assert revision.describe(head) == f"{__version__} (revision {head[:12]})"


@pytest.mark.parametrize("changed", [".gitignore", "untracked.py"])
def test_a_build_of_uncommitted_changes_is_dirty(checkout: Path, changed: str) -> None:
    with (checkout / changed).open("a") as file:
        file.write("# changed\n")
    assert write(checkout).returncode == 0
    found = revision.read(checkout / FILE)
    assert found == git(checkout, "rev-parse", "HEAD") + "-dirty"
    assert revision.describe(found) == f"{__version__} (revision {found[:12]}, dirty)"


def test_an_unchanged_revision_is_not_written_again(checkout: Path) -> None:
    write(checkout)
    before = (checkout / FILE).stat()
    write(checkout)
    assert (checkout / FILE).stat().st_mtime_ns == before.st_mtime_ns


def test_sources_without_git_keep_the_revision_of_their_archive(checkout: Path) -> None:
    write(checkout)
    head = git(checkout, "rev-parse", "HEAD")
    shutil.rmtree(checkout / ".git")
    assert write(checkout).returncode == 0
    assert revision.read(checkout / FILE) == head


def test_sources_in_a_folder_of_another_repository_have_no_revision(checkout: Path) -> None:
    inner = checkout / "inner"
    shutil.copytree(checkout, inner, ignore=shutil.ignore_patterns(".git"))
    assert write(inner).returncode == 0
    assert not (inner / FILE).exists()
    assert revision.read(inner / FILE) == revision.UNKNOWN
    assert revision.describe(revision.UNKNOWN) == f"{__version__} (revision unknown)"


def test_a_build_without_git_is_given_its_revision(checkout: Path) -> None:
    assert write(checkout, DRA_AGENT_REVISION=COMMIT).returncode == 0
    assert revision.read(checkout / FILE) == COMMIT
    refused = write(checkout, DRA_AGENT_REVISION="main")
    assert refused.returncode == 1
    assert "DRA_AGENT_REVISION" in refused.stderr
    assert revision.read(checkout / FILE) == COMMIT


def test_a_damaged_file_is_an_unknown_revision(tmp_path: Path) -> None:
    file = tmp_path / "revision.txt"
    file.write_bytes(b"\xff\x00")
    assert revision.read(file) == revision.UNKNOWN


def test_the_built_agent_names_its_revision() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dra_agent", "--version"], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout == f"dra-agent {revision.describe()}\n"
    assert revision.read() != revision.UNKNOWN or not (ROOT / ".git").exists(), "`make build` writes it"
