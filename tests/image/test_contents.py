"""The files of the image, its configuration and its bill of materials."""

from __future__ import annotations

import json
import posixpath
import re

import pytest

from dra_agent import __version__

from .conftest import Image

FAKE = "/usr/local/lib/dra-agent/dra_simulate/lib/libnvidia-ml.so.1"
HOOK = "/usr/local/lib/dra-agent/dra_agent/device_setup/lib/dra-agent-hook"
SBOM = "/usr/share/doc/dra-agent/sbom.cdx.json"
PROGRAMS = re.compile(r"/usr/local/bin/dra-agent|/usr(/local)?/bin/python3\.\d+|.*/ld-linux-[a-z0-9-]+\.so\.\d|" + HOOK)
TOOLS = re.compile(
    r"(ba|da)?sh|busybox|apt(-get)?|dpkg.*|pip[\d.]*|gcc.*|cc|ld|as|make|cargo|rustc|perl.*|curl|wget|maturin|ldconfig"
)
FOREIGN_FOLDERS = re.compile(r"/(pip|setuptools|maturin|ensurepip|src|target|root|home|var/cache|var/lib/apt)(/|$)")
MAX_COMPRESSED_MIB = 60


def test_only_the_agent_and_its_interpreter_are_programs(plain: Image) -> None:
    executable = {
        path
        for path, entry in plain.files.items()
        if entry.isfile() and entry.mode & 0o111 and not re.search(r"\.so(\.[\d.]+)?$|\.py$", path)
    }
    assert {path for path in executable if not PROGRAMS.fullmatch(path)} == set()
    assert {"/usr/local/bin/dra-agent", HOOK} <= executable


def test_no_shell_package_manager_or_compiler_is_left(plain: Image) -> None:
    programs = [
        path for path, entry in plain.files.items() if not entry.isdir() and (entry.mode & 0o111 or "bin/" in path)
    ]
    assert [path for path in programs if TOOLS.fullmatch(posixpath.basename(path))] == []
    assert [path for path in plain.files if FOREIGN_FOLDERS.search(path)] == []
    assert [path for path in plain.files if path.endswith((".a", ".o", ".h", ".rs", ".rlib", ".pth"))] == []


def test_the_simulated_library_is_in_the_debug_variant_only(plain: Image, debug: Image) -> None:
    assert FAKE not in plain.files
    assert {FAKE, "/usr/bin/sh"} <= debug.files.keys()
    assert debug.manifest["layers"][:-1] == plain.manifest["layers"], "the debug variant only adds files"


@pytest.mark.parametrize("variant", ["plain", "debug"])
def test_files_are_writable_by_root_alone(variant: str, request: pytest.FixtureRequest) -> None:
    image: Image = request.getfixturevalue(variant)
    entries = {path: entry for path, entry in image.files.items() if not entry.issym()}
    assert {path for path, entry in entries.items() if entry.mode & 0o022} == {"/tmp"}
    assert entries["/tmp"].mode & 0o1000
    assert not [path for path, entry in entries.items() if path != "/tmp" and entry.mode & 0o7000]
    assert {(entry.uid, entry.gid) for entry in image.files.values()} == {(0, 0)}
    assert {entry.mtime for entry in image.files.values()} <= {0, *(entry.mtime for entry in entries.values())}


def test_links_lead_to_files_of_the_image(plain: Image) -> None:
    def resolved(path: str) -> str:
        """Resolve the links of a merged /usr in the first part of a path."""
        first, _, rest = path.lstrip("/").partition("/")
        entry = plain.files.get(f"/{first}")
        return f"/{entry.linkname}/{rest}".rstrip("/") if entry is not None and entry.issym() else path

    for path, entry in plain.files.items():
        if entry.issym():
            target = resolved(posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.linkname)))
            assert target in plain.files, f"{path} → {entry.linkname}"


def test_labels_name_the_sources(plain: Image) -> None:
    config = plain.config["config"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    assert labels["version"] == __version__
    assert labels["revision"] == plain.read("/usr/local/lib/dra-agent/dra_agent/revision.txt").decode().strip()
    assert labels["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])
    assert plain.config["created"] == labels["created"]
    assert config["Entrypoint"] == ["/usr/local/bin/dra-agent"]
    assert config["User"] == "0:0"


@pytest.mark.parametrize("variant", ["plain", "debug"])
def test_every_part_of_the_image_is_in_its_bill_of_materials(variant: str, request: pytest.FixtureRequest) -> None:
    image: Image = request.getfixturevalue(variant)
    text = image.read(SBOM)
    assert text == image.archive.with_suffix("").with_suffix(".cdx.json").read_bytes()
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    names = {component["purl"].partition("@")[0] for component in bill["components"]}
    assert {"pkg:pypi/grpcio", "pkg:cargo/pyo3", "pkg:cargo/dra-agent-hook", "pkg:deb/debian/libc6"} <= names
    assert not [name for name in names if re.search(r"pytest|mypy|proptest|tempfile|bash|/dpkg$", name)]
    only_debug = {"pkg:cargo/dra-nvml-fake", "pkg:deb/debian/busybox-static"}
    assert names & only_debug == (only_debug if variant == "debug" else set())
    packages = {path.rpartition("/")[2] for path in image.files if "/var/lib/dpkg/status.d/" in path}
    assert packages == {name.removeprefix("pkg:deb/debian/") for name in names if name.startswith("pkg:deb")}
    distributions = [path for path in image.files if path.endswith(".dist-info/METADATA")]
    assert len(distributions) == len([name for name in names if name.startswith("pkg:pypi/")])


def test_the_image_is_small(plain: Image) -> None:
    size = plain.archive.stat().st_size / 2**20
    content = sum(entry.size for entry in plain.files.values()) / 2**20
    print(f"{size:.1f} MiB compressed, {content:.1f} MiB of files, {len(plain.files)} entries")
    assert size < MAX_COMPRESSED_MIB
