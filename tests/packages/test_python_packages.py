"""The wheels in a clean environment, and the source distribution."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from deploy.archives import extract

import released
from eventually import eventually
from packages.conftest import BUILD_TIMEOUT_S, CLAIM, ROOT

ELF = b"\x7fELF"
WHEELS = ("dra_agent-*.whl", "dra_agent_cluster-*.whl", "dra_agent_simulate-*.whl")


def build(script: str, *options: str | Path) -> list[Path]:
    command: list[str | Path] = [sys.executable, ROOT / "deploy" / script, *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    return [Path(line) for line in result.stdout.split()]


def test_wheels_in_a_clean_environment_run_an_agent(tmp_path: Path) -> None:
    found = [released.artifact(released.PACKAGES, pattern) for pattern in WHEELS]
    released_wheels = [wheel for wheel in found if wheel is not None]
    wheel, *others = released_wheels or build("wheel.py", "--native", "--output", tmp_path)
    assert len(others) == 2
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=BUILD_TIMEOUT_S)
    pip: list[str | Path] = [environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    # The versions of requirements.lock, without its tools.
    constraints = tmp_path / "constraints.txt"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    constraints.write_text("\n".join(line.removesuffix(" \\") for line in lines if line[:1].isalnum()))
    installed = subprocess.run(
        [*pip, "-c", constraints, wheel], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
    )
    if installed.returncode != 0 and "connection" in installed.stderr.lower():
        pytest.skip("needs PyPI")
    assert installed.returncode == 0, installed.stderr
    agent = environment / "bin/dra-agent"
    state = tmp_path / "state"
    # Without the variables of the test run, which could let it find the repository.
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for arguments, missing in ((["capacity", "pod/train"], "cluster"), (["devices", "--simulate", "x"], "simulate")):
        alone = subprocess.run(
            [agent, *arguments], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
        assert alone.returncode == 2 and f"pip install 'dra-agent[{missing}]'" in alone.stderr, alone.stderr
    subprocess.run([*pip, "--no-deps", *others], check=True, timeout=BUILD_TIMEOUT_S)
    flags = ["--standalone", "--simulate", "vm-1gpu", "--state-dir", str(state), "--run-dir", str(tmp_path / "run")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([agent, "run", *flags], cwd=tmp_path, env=clean, stdout=log, stderr=log)
        try:
            eventually(lambda: (state / "agent.sock").exists(), (tmp_path / "log").read_text, within=240)
            claim = tmp_path / "claim.yaml"
            claim.write_text(CLAIM.replace("NAME", "training"))
            applied = subprocess.run(
                [agent, "claim", "apply", "--state-dir", state, "-f", claim],
                cwd=tmp_path,
                env=clean,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
            )
            assert "prepared" in applied.stdout, applied.stdout + applied.stderr
        finally:
            process.terminate()
            assert process.wait(BUILD_TIMEOUT_S) == 0
    # The fake NVML ran in another process, and the package has the hook.
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert next(environment.rglob("dra-agent-hook")).read_bytes().startswith(ELF)


def test_the_source_distribution_has_all_sources_and_no_binaries(tmp_path: Path) -> None:
    release = released.artifact(released.PACKAGES, "dra_agent-*.tar.gz")
    (archive,) = [release] if release else build("sdist.py", tmp_path)
    with tarfile.open(archive) as opened:
        extract(opened, tmp_path)
    # Two builds of a release are compared by `make release ARGS=--twice`.
    assert release or build("sdist.py", tmp_path / "again")[0].read_bytes() == archive.read_bytes()
    (root,) = (path for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith("dra_agent-"))
    assert (root / "PKG-INFO").read_text().startswith("Metadata-Version:")
    assert [path for path in root.rglob("*") if path.is_file() and path.read_bytes().startswith(ELF)] == []
    for command in (
        ["cargo", "metadata", "--offline", "--locked", "--no-deps", "--format-version=1"],
        ["make", "--dry-run", "build", "install", "deb", "wheel"],
    ):
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        assert result.returncode == 0, result.stderr
