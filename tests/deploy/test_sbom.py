"""The bill of materials of an image, made of this machine's packages and of the crates of this checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.image import sbom

from deploy.rendering import ROOT

TAR, GZIP = Path("/usr/bin/tar"), Path("/usr/bin/gzip")


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    """An image with tar, and what its debug variant adds: gzip."""
    done = None
    if shutil.which("dpkg-query") is not None:
        done = subprocess.run(["dpkg-query", "--show", "tar", "gzip"], capture_output=True, check=False)
    if done is None or done.returncode != 0:
        pytest.skip("needs a Debian with the packages tar and gzip")
    image, debug = tmp_path / "image", tmp_path / "debug"
    for root, program in ((image, TAR), (debug, GZIP)):
        (root / "usr/bin").mkdir(parents=True)
        shutil.copy(program, root / "usr/bin")
    return image, debug


def test_records_of_a_package_are_in_the_layer_that_has_its_files(layers: tuple[Path, Path]) -> None:
    image, debug = layers
    assert [found["name"] for found in sbom.base_packages(image)] == ["tar"]
    assert [found["name"] for found in sbom.base_packages(image, debug)] == ["gzip", "tar"]
    for root, package in ((image, "tar"), (debug, "gzip")):
        assert [path.name for path in (root / sbom.DPKG_INFO).iterdir()] == [package]
        assert [path.name for path in (root / "usr/share/doc").iterdir()] == [package]


def test_the_debug_variant_lists_what_it_adds(layers: tuple[Path, Path], tmp_path: Path) -> None:
    image, debug = layers
    (tmp_path / "libraries").mkdir()
    written: list[set[str]] = []
    for flags in ([], ["--added", str(debug)]):
        command = [sys.executable, "-m", "deploy.image.sbom", "--libraries", str(tmp_path / "libraries")]
        command += ["--root", str(image), *flags, "--output", str(tmp_path / "sbom.json")]
        subprocess.run(command, cwd=ROOT, check=True)
        bill = json.loads((tmp_path / "sbom.json").read_text())
        written.append({component["purl"].partition("@")[0] for component in bill["components"]})
    plain, with_debug = written
    assert {"pkg:cargo/dra-native", "pkg:cargo/dra-agent-hook", "pkg:deb/debian/tar"} <= plain
    assert {"pkg:cargo/dra-nvml-fake", "pkg:deb/debian/gzip"} <= with_debug - plain
    assert plain < with_debug
