"""The commands of docs/how-to/install/image.md that sign the checksums of a release, and verify its files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.release import provenance

from deploy.rendering import ROOT

PAGE = ROOT / "docs/how-to/install/image.md"
KEY = "release@example.com"


class Keyring:
    """The home directory of one user of gpg."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self._home = home
        self._environment = {**os.environ, "GNUPGHOME": str(home), "LC_ALL": "C"}

    def create_key(self) -> None:
        self.run("gpg --batch --quiet --passphrase '' --quick-generate-key " + KEY, self._home)

    def run(self, command: str, folder: Path) -> str:
        """Run a command in a folder; fails with its output."""
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        return done.stdout + done.stderr

    def close(self) -> None:
        subprocess.run(["gpgconf", "--kill", "all"], env=self._environment, check=True)


@pytest.fixture
def distributor(short_path: Path) -> Iterator[Keyring]:
    if shutil.which("gpg") is None or shutil.which("gpgconf") is None:
        pytest.skip("gpg is not installed")
    keyring = Keyring(short_path / "distributor")
    keyring.create_key()
    yield keyring
    keyring.close()


@pytest.fixture
def user(short_path: Path) -> Iterator[Keyring]:
    keyring = Keyring(short_path / "user")
    yield keyring
    keyring.close()


def commands() -> tuple[str, str]:
    """Return the commands that sign and those that verify."""
    section = PAGE.read_text().partition("### Sign and verify\n")[2].partition("\n#")[0]
    sign, verify = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return sign, verify


@pytest.fixture
def release(tmp_path: Path, distributor: Keyring) -> Path:
    """A signed release of two files."""
    folder = tmp_path / "target/release-0.1.0"
    folder.mkdir(parents=True)
    for name in ("dra_agent-0.1.0.tar.gz", "dra-agent-chart-0.1.0.tgz"):
        (folder / name).write_text(name)
    provenance.write(folder, ROOT, version="0.1.0", revision="0" * 40, bases={})
    distributor.run(commands()[0], tmp_path)
    return folder


def test_a_signed_release_is_verified(release: Path, user: Keyring) -> None:
    (release / "dra-agent-chart-0.1.0.tgz").unlink()  # not everything was downloaded
    output = user.run(commands()[1], release)
    assert f'Good signature from "{KEY}"' in output
    assert re.findall(r"^(.*): OK$", output, re.MULTILINE) == [
        "dra-agent-0.1.0.provenance.json",
        "dra_agent-0.1.0.tar.gz",
    ]


@pytest.mark.parametrize("name", ["dra_agent-0.1.0.tar.gz", "dra-agent-0.1.0.provenance.json"])
def test_a_changed_file_is_detected(release: Path, user: Keyring, name: str) -> None:
    with (release / name).open("a") as file:
        file.write("\n")
    with pytest.raises(AssertionError, match=f"{re.escape(name)}: FAILED"):
        user.run(commands()[1], release)


def test_changed_checksums_are_detected(release: Path, user: Keyring) -> None:
    sums = release / provenance.SUMS
    sums.write_text(sums.read_text().replace("dra-agent-chart", "dra-agent-other"))
    with pytest.raises(AssertionError, match="BAD signature"):
        user.run(commands()[1], release)


def test_a_signature_of_another_key_is_detected(release: Path, distributor: Keyring, user: Keyring) -> None:
    user.create_key()
    other = user.run(f"gpg --armor --export {KEY}", release)
    (release / "KEY.asc").write_text(other)
    with pytest.raises(AssertionError, match="No public key"):
        user.run(commands()[1], release)
