"""Images of this checkout, built by `make test-image`; without root, buildah or mmdebstrap its tests are skipped.

They are installed with the packed chart of a release. DRA_AGENT_TEST_IMAGES names a release directory, whose images and
chart are then tested instead; if it has no chart, that of this checkout is packed.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from deploy.release import archive

import released
from cluster.kube import build as programs
from cluster.kube import prerequisites
from cluster.kube.cluster import Cluster, running
from cluster.kube.identity import CHART
from dra_agent import __version__
from permissions import permissions_of_root

__all__ = ["permissions_of_root"]

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "target/image"
BUILD_TIMEOUT_S = 3600
CHARTS = "dra-agent-chart-*.tgz"
EPOCH = 1_700_000_000
"""Seconds since 1970: the time of the files in a chart that is packed here."""
TEST_TIMEOUT_S = 4 * BUILD_TIMEOUT_S
"""Seconds of one test, with both images, the cluster and its programs, which the first one builds."""


@dataclass(frozen=True)
class Image:
    """An OCI archive with one image."""

    archive: Path

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        """All members of the archive, by name."""
        with tarfile.open(self.archive) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]

    @cached_property
    def manifest(self) -> dict[str, Any]:
        (entry,) = json.loads(self.blobs["index.json"])["manifests"]
        return self._json(entry["digest"])

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._json(self.manifest["config"]["digest"])

    @cached_property
    def files(self) -> dict[str, tarfile.TarInfo]:
        """The entries of all layers by absolute path; entries of later layers replace those of earlier ones."""
        found: dict[str, tarfile.TarInfo] = {}
        for layer in self._layers():
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                found |= {f"/{member.name}".removesuffix("/"): member for member in tar}
        return found

    @property
    def name(self) -> str:
        """The name under which containerd imports it."""
        (entry,) = json.loads(self.blobs["index.json"])["manifests"]
        found: str = entry["annotations"]["io.containerd.image.name"]
        return found

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        for layer in reversed(self._layers()):
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                if path.lstrip("/") in tar.getnames() and (file := tar.extractfile(path.lstrip("/"))) is not None:
                    return file.read()
        raise FileNotFoundError(path)

    def _layers(self) -> list[bytes]:
        return [gzip.decompress(self._blob(layer["digest"])) for layer in self.manifest["layers"]]

    def _blob(self, digest: str) -> bytes:
        return self.blobs[f"blobs/{digest.replace(':', '/')}"]

    def _json(self, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._blob(digest))
        return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here the time of the builds."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


def build(variant: str) -> Image:
    if given := os.environ.get(released.IMAGES):
        pattern = "dra-agent-*.oci.tar"
        (found,) = [path for path in Path(given).glob(pattern) if ("-debug-" in path.name) == (variant == "debug")]
        released.verify(found)
        return Image(found)
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian package {program}): no image is built")
    if os.geteuid() != 0:
        pytest.skip("not root: no image is built")
    done = subprocess.run(
        [sys.executable, "-m", "deploy.image.build", "--variant", variant],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return Image(Path(re.findall(r"^wrote (\S+)", done.stdout, re.MULTILINE)[-1]))


@pytest.fixture(scope="session")
def plain() -> Image:
    """The image for clusters."""
    return build("plain")


@pytest.fixture(scope="session")
def debug(plain: Image) -> Image:
    """The variant with a shell and simulated hardware; the stage with the compiler is that of the plain image."""
    del plain
    return build("debug")


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed chart: that of the release directory, or of this checkout as `make release` packs it."""
    given = os.environ.get(released.IMAGES)
    if given and list(Path(given).glob(CHARTS)):
        (found,) = Path(given).resolve().glob(CHARTS)
        released.verify(found)
        return found
    packed = tmp_path_factory.mktemp("chart") / f"dra-agent-chart-{__version__}.tgz"
    archive.write(packed, CHART, "dra-agent", EPOCH)
    return packed


@pytest.fixture(scope="session")
def cluster(plain: Image, debug: Image) -> Iterator[Cluster]:
    """A cluster whose nodes have both images."""
    try:
        programs.programs()
    except prerequisites.MissingError as missing:
        pytest.skip(str(missing))
    with running() as started:
        for node in started.nodes:
            for image in (plain, debug):
                node.ctr("images", "import", str(image.archive))
        yield started
