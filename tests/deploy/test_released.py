"""The artifacts of a release directory that tests of packages and images install."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy.release import provenance

import released
from deploy.rendering import ROOT

VERSION = "1.2.3"
DEB = "dra-agent_*.deb"


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release directory with two artifacts, and with what `make release` writes about them."""
    (tmp_path / f"dra-agent_{VERSION}-1_amd64.deb").write_text("package")
    (tmp_path / f"dra_agent-{VERSION}.tar.gz").write_text("sources")
    provenance.write(tmp_path, ROOT, version=VERSION, revision="0" * 40, bases={})
    monkeypatch.setenv(released.PACKAGES, str(tmp_path))
    return tmp_path


def test_without_the_variable_no_artifact_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(released.PACKAGES, raising=False)
    assert released.artifact(released.PACKAGES, DEB) is None


def test_an_artifact_is_the_one_that_was_released(release: Path) -> None:
    found = released.artifact(released.PACKAGES, DEB)
    assert found is not None and found.read_text() == "package"
    found.write_text("another package")
    with pytest.raises(AssertionError, match="not that of SHA256SUMS"):
        released.artifact(released.PACKAGES, DEB)


def test_a_file_that_was_not_released_is_refused(release: Path) -> None:
    (release / "dra_agent-1.2.3-py3-none-any.whl").write_text("wheel")
    with pytest.raises(AssertionError, match="not that of SHA256SUMS"):
        released.artifact(released.PACKAGES, "dra_agent-*.whl")


def test_a_missing_artifact_and_two_versions_of_one_are_refused(release: Path) -> None:
    with pytest.raises(AssertionError, match=r"one file dra_agent-\*\.whl is needed, not \[\]"):
        released.artifact(released.PACKAGES, "dra_agent-*.whl")
    (release / "dra-agent_1.2.4-1_amd64.deb").write_text("package")
    with pytest.raises(AssertionError, match="is needed, not"):
        released.artifact(released.PACKAGES, DEB)
