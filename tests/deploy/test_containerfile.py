"""The Containerfile, as far as it can be checked without a registry: copied files, requirements, entry point.

tests/cluster/test_deployment.py runs an image that is built by the same `make install`.
"""

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
BUILT_BINARY = (
    "python/dra_agent/_native.abi3.so",
    "python/dra_agent/simulate/lib/libnvidia-ml.so.1",
    "python/dra_agent/device_setup/lib/dra-agent-hook",
)
"""Artifacts of the build between the copies and the installation."""


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def copies() -> list[tuple[list[str], str]]:
    """Return the sources in the repository and the target of each copy."""
    found = [shlex.split(rest) for word, rest in instructions() if word == "COPY"]
    return [(words[:-1], words[-1]) for words in found if not words[0].startswith("--from=")]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the build stage, and nothing else of the repository."""
    root = tmp_path_factory.mktemp("context")
    for sources, target in copies():
        for source in sources:
            to = root / target / Path(source).name if target.endswith("/") else root / target
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so", "lib")
                shutil.copytree(ROOT / source, to, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, to)
    return root


def test_containerfile_uses_known_instructions_and_stages() -> None:
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions()} <= known
    stages = {rest.split(" AS ")[1] for word, rest in instructions() if word == "FROM" and " AS " in rest}
    used_stages = {
        rest.split()[0].removeprefix("--from=") for word, rest in instructions() if rest.startswith("--from=")
    }
    assert used_stages == {"rust", "build"} == stages
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert bases[1] == bases[2], "the image has the Python of the build"


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
        ("python", r'requires-python = ">=(\d+)\.(\d+)"', "pyproject.toml"),
    ):
        (oldest,) = re.findall(pattern, (ROOT / file_name).read_text())
        (used,) = re.findall(rf"library/{name}:(\d+)\.(\d+)-slim", FILE.read_text())
        assert tuple(map(int, used)) >= tuple(map(int, oldest)), f"{name}: {file_name} requires {oldest}"


def test_make_finds_every_source_that_it_needs(context: Path) -> None:
    (command,) = [rest for word, rest in instructions() if word == "RUN" and rest.startswith("make")]
    result = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=context, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "deploy/install.py --destdir '/image/' --prefix '/usr/local'" in result.stdout
    cargo = ["cargo", "metadata", "--offline", "--locked", "--no-deps", "--format-version=1"]
    result = subprocess.run(cargo, cwd=context, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (readme,) = re.findall(r'^readme = "(.+)"', (context / "pyproject.toml").read_text(), re.MULTILINE)
    assert (context / readme).exists(), "maturin requires it"


def test_installed_command_is_the_entry_point_of_the_image(context: Path, tmp_path: Path) -> None:
    for name in BUILT_BINARY:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, context / name)
    command: list[str | Path] = [
        sys.executable,
        context / "deploy/install.py",
        "--destdir",
        tmp_path,
        "--prefix",
        "/usr/local",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    ((_, entrypoint),) = [found for found in instructions() if found[0] == "ENTRYPOINT"]
    assert entrypoint == '["/usr/local/bin/dra-agent"]'
    launcher = (tmp_path / "usr/local/bin/dra-agent").read_text()
    assert (tmp_path / "usr/local/lib/dra-agent/dra_agent/_native.abi3.so").exists()
    moved = tmp_path / "dra-agent"
    moved.write_text(launcher.replace("/usr/local/lib", f"{tmp_path}/usr/local/lib"))
    moved.chmod(0o755)
    result = subprocess.run([moved, "--version"], cwd="/", capture_output=True, text=True, check=False)
    assert result.stdout.startswith("dra-agent "), result.stderr


def test_local_build_artifacts_are_excluded_from_the_context() -> None:
    ignored = (ROOT / ".containerignore").read_text().split()
    assert {".git", ".venv", "target", "**/*.so"} <= set(ignored)
