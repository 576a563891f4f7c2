"""The Containerfile, as far as it can be checked without building it; tests/image builds and runs the image."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rendering import ROOT

FILE = ROOT / "deploy/Containerfile"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def copies() -> list[tuple[list[str], str]]:
    """Return the sources in the repository and the target of each copy."""
    found = [shlex.split(rest) for word, rest in instructions() if word == "COPY"]
    return [(words[:-1], words[-1]) for words in found if not words[0].startswith("--from=")]


def test_containerfile_uses_known_instructions_and_stages() -> None:
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "LABEL", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions()} <= known
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert stages == ["${RUST} AS rust", "${BASE} AS build", "scratch AS plain", "plain AS debug", "plain"]


def test_bases_are_pinned_by_digest_in_one_place() -> None:
    pinned = [rest for word, rest in instructions() if word == "ARG" and rest.startswith(("BASE=", "RUST="))]
    assert len(pinned) == 2
    for line in pinned:
        assert re.fullmatch(r"[A-Z]+=docker\.io/library/[a-z]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", line)
        digest = line.rpartition("@")[2]
        done = subprocess.run(["git", "grep", "-l", digest], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            assert done.stdout.split() == ["deploy/Containerfile"]


def test_every_copied_file_is_in_the_repository() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    files = tracked.stdout.splitlines()
    sources = [source for given, _ in copies() for source in given]
    assert len(sources) > 5
    missing = [name for name in sources if not any(file == name or file.startswith(f"{name}/") for file in files)]
    assert not missing


def test_compiler_and_python_are_new_enough() -> None:
    for name, pattern, file_name in (
        ("rust", r'rust-version = "(\d+)\.(\d+)', "Cargo.toml"),
        ("rust", r'channel = "(\d+)\.(\d+)', "rust-toolchain.toml"),
        ("python", r'requires-python = ">=(\d+)\.(\d+)"', "pyproject.toml"),
    ):
        (oldest,) = re.findall(pattern, (ROOT / file_name).read_text())
        (used,) = re.findall(rf"library/{name}:(\d+)\.(\d+)-slim", FILE.read_text())
        assert tuple(map(int, used)) >= tuple(map(int, oldest)), f"{name}: {file_name} requires {oldest}"


def test_cargo_and_the_scripts_find_every_source_that_they_need(tmp_path: Path) -> None:
    for sources, target in copies():
        for source in sources:
            to = tmp_path / target / Path(source).name if target.endswith("/") else tmp_path / target
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so", "lib")
                shutil.copytree(ROOT / source, to, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, to)
    cargo = ["cargo", "metadata", "--offline", "--locked", "--no-deps", "--format-version=1"]
    done = subprocess.run(cargo, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for module in ("compile", "locked", "binaries", "rootfs", "sbom"):
        arguments = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, '.'); import deploy.image.{module}"]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_podman_and_docker_leave_the_same_files_out_of_the_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text()
    assert ignored == (ROOT / ".containerignore").read_text()
    lines = set(ignored.split("\n"))
    assert {".git", ".venv", "target", "**/*.so"} <= lines
    # What git ignores inside the copied folders is a build output.
    outputs = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line.startswith("/python/")]
    assert outputs and set(outputs) <= lines


def test_every_pinned_library_of_the_image_has_a_hash() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.image.locked"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    entries = re.split(r"\n(?=\S)", done.stdout.strip())
    names = {entry.partition("==")[0] for entry in entries}
    assert {"grpcio", "msgspec", "pyyaml", "rich", "pygments", "typing-extensions"} <= names
    assert not {"pytest", "mypy", "ruff", "maturin", "grpcio-tools", "httpx2"} & names
    assert all("--hash=sha256:" in entry for entry in entries)
