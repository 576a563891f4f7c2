"""The parts of `make release` that need no build: what it refuses, and archives that depend on their content alone."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from deploy.release import archive, compare, provenance, sources
from deploy.release.__main__ import PARTS, parts
from deploy.wheel import COMPILED, MACHINES, check, remove_build_path

from deploy.conftest import binary
from deploy.rendering import ROOT
from dra_agent import __version__

EPOCH = 1_700_000_000
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files that contain the version."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path / "checkout"
    for name in sources.VERSIONS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *arguments: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True, env=environment)


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "change")


def test_a_clean_checkout_of_the_version_can_be_released(checkout: Path) -> None:
    sources.check(checkout, __version__)


@pytest.mark.parametrize("name", ["new.txt", "Cargo.toml"])
def test_a_checkout_with_changes_is_refused(checkout: Path, name: str) -> None:
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    with pytest.raises(sources.ReleaseError, match=rf"uncommitted changes.*{name}"):
        sources.check(checkout, __version__)


@pytest.mark.parametrize("name", list(sources.VERSIONS))
def test_a_file_with_another_version_is_refused(checkout: Path, name: str) -> None:
    file = checkout / name
    file.write_text(file.read_text().replace(__version__, "9.9.9", 1))
    commit(checkout)
    with pytest.raises(sources.ReleaseError, match=rf"{name} has 9\.9\.9"):
        sources.check(checkout, __version__)


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3-rc1", "9.9.9"])
def test_another_or_a_malformed_version_is_refused(checkout: Path, version: str) -> None:
    with pytest.raises(sources.ReleaseError, match="VERSION="):
        sources.check(checkout, version)


def test_the_export_has_the_files_of_the_commit_only(checkout: Path, tmp_path: Path) -> None:
    (checkout / "untracked").write_text("")
    sources.export(checkout, tmp_path / "src")
    found = {str(path.relative_to(tmp_path / "src")) for path in (tmp_path / "src").rglob("*") if path.is_file()}
    assert found == set(sources.VERSIONS)


def test_parts_of_a_release_are_chosen() -> None:
    assert parts("man,sdist") == ["sdist", "man"]
    assert parts(",".join(PARTS)) == list(PARTS)


@pytest.mark.parametrize(("text", "reason"), [("sdist,x", "unknown: x"), ("", "unknown"), ("deb", "add wheel")])
def test_parts_that_cannot_be_built_are_refused(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=reason):
        parts(text)


def test_archives_of_equal_files_have_equal_bytes(tmp_path: Path) -> None:
    written: list[bytes] = []
    for number, names in enumerate((["a/x", "b"], ["b", "a/x"])):
        folder = tmp_path / str(number)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
            os.utime(folder / name, (number, number))
        archive.write(tmp_path / f"{number}.tar.gz", folder, "top", EPOCH)
        written.append((tmp_path / f"{number}.tar.gz").read_bytes())
    assert written[0] == written[1]
    with tarfile.open(tmp_path / "0.tar.gz") as tar:
        assert [(member.name, member.mtime, member.uid) for member in tar] == [
            ("top/a/x", EPOCH, 0),
            ("top/b", EPOCH, 0),
        ]


def test_the_archive_of_the_chart_is_a_chart(tmp_path: Path) -> None:
    packed = tmp_path / "chart.tgz"
    archive.write(packed, ROOT / "deploy/helm/dra-agent", "dra-agent", EPOCH)
    done = subprocess.run([binary("helm"), "template", "x", packed], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kind: DaemonSet" in done.stdout


def test_a_comparison_names_the_differences(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "same.txt").write_text("same")
        (folder / "text.txt").write_text(str(number))
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            wheel.writestr(zipfile.ZipInfo("same.py"), "")
            wheel.writestr(zipfile.ZipInfo("pkg/changed.so"), str(number))
    (tmp_path / "1/more.txt").write_text("")
    assert compare.differences(tmp_path / "0", tmp_path / "0") == []
    assert compare.differences(tmp_path / "0", tmp_path / "1") == [
        f"more.txt: only in {tmp_path / '1'}",
        "text.txt: content differs",
        "x.whl: pkg/changed.so",
    ]


def test_the_statement_covers_every_artifact_and_names_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "one.whl").write_text("wheel")
    base = f"docker.io/library/python:3@sha256:{'a' * 64}"
    provenance.write(tmp_path, ROOT, version="1.2.3", revision=COMMIT, bases={"BASE": base, "RUST": "localhost/rust"})
    statement = json.loads((tmp_path / "dra-agent-1.2.3.provenance.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert [subject["name"] for subject in statement["subject"]] == ["one.whl"]
    inputs = {item["name"]: item for item in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert inputs["sources"]["digest"] == {"gitCommit": COMMIT}
    assert inputs["Cargo.lock"]["digest"]["sha256"] == provenance.digest(ROOT / "Cargo.lock")
    assert inputs["image BASE"]["digest"] == {"sha256": "a" * 64}
    assert "digest" not in inputs["image RUST"]
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == {"one.whl", "dra-agent-1.2.3.provenance.json"}
    assert sums["one.whl"] == provenance.digest(tmp_path / "one.whl")


def test_a_wheel_does_not_depend_on_the_directory_of_its_build(tmp_path: Path) -> None:
    contents: list[dict[str, bytes]] = []
    for name in ("one", "second-build"):
        wheel = tmp_path / f"{name}.whl"
        bill = json.dumps({"bom-ref": f"path+file:///{name}/src/rust/engine/api#dra-api"})
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("a-1.dist-info/sboms/a.json", bill)
            archive.writestr("a-1.dist-info/RECORD", f"a-1.dist-info/sboms/a.json,sha256=old,{len(bill)}\n")
        remove_build_path(wheel, Path(f"/{name}/src"))
        with zipfile.ZipFile(wheel) as archive:
            contents.append({entry: archive.read(entry) for entry in archive.namelist()})
    assert contents[0] == contents[1]
    bill = '{"bom-ref": "path+file:///src/rust/engine/api#dra-api"}'
    assert contents[0]["a-1.dist-info/sboms/a.json"].decode() == bill
    assert contents[0]["a-1.dist-info/RECORD"].decode().endswith(f",{len(bill)}\n")


@pytest.mark.parametrize(
    ("distribution", "wrong"), [(distribution, part) for distribution, parts in COMPILED.items() for part in parts]
)
def test_a_wheel_with_a_part_for_another_machine_is_refused(distribution: str, wrong: str, tmp_path: Path) -> None:
    wheel = tmp_path / f"{distribution}-1.whl"
    for machine, other in (("x86_64", "aarch64"), ("aarch64", "x86_64")):
        for odd in (None, wrong):
            with zipfile.ZipFile(wheel, "w") as archive:
                for name in COMPILED[distribution]:
                    number = MACHINES[other if name == odd else machine]
                    archive.writestr(name, b"\x7fELF".ljust(18, b"\0") + number.to_bytes(2, "little") + b"GLIBC_2.28")
            if odd is None:
                check(wheel, "2.28", machine)
            else:
                with pytest.raises(
                    ValueError, match=rf"{wrong} is for ELF machine {MACHINES[other]}, not for {machine}"
                ):
                    check(wheel, "2.28", machine)
