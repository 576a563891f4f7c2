"""The quickstarts of README.md without Kubernetes work when their lines are pasted one after the other."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quickstart
from dra_agent.agent.config import load_config
from dra_agent.cdi.runtime import find, make_rootfs
from unprivileged import AGENT, home_for_everyone, script, without_root

ROOT = Path(__file__).resolve().parents[2]


def paste(commands: list[str], directory: Path, prefix: tuple[str, ...] = ()) -> str:
    """Run the lines in one shell that stops at the first failure; return what they print."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")},
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "HOME": str(directory),
        "DRA_AGENT_NODE_NAME": "node-1",
    }
    script = "\n".join(["set -e", "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT", *commands])
    result = subprocess.run(
        [*prefix, "bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{script}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture
def home() -> Iterator[Path]:
    """Its path is short enough for sockets."""
    with home_for_everyone() as directory:
        yield directory


def test_quickstart_without_hardware_needs_no_root(home: Path) -> None:
    commands = quickstart.lines("Try it without hardware")
    assert commands[0] == 'make build && export PATH="$PWD/.venv/bin:$PATH"'
    pasted, times = commands[1:], home / "times"
    prefix = without_root(home)
    printed = paste([line.replace("/tmp/", f"{home}/") for line in quickstart.timed(pasted, times)], home, prefix)
    report = quickstart.record("Try it without hardware", pasted, times, left_out="make build")
    assert [line["command"] for line in report["lines"]] == pasted
    assert "resourceclaim/gpu-and-nic-one-switch created: prepared" in printed


def test_quickstart_on_bare_metal_gives_podman_a_device_of_an_installed_spec(tmp_path: Path) -> None:
    commands = quickstart.lines("Bare metal with podman")
    state, cdi, stage = tmp_path / "state", tmp_path / "cdi", tmp_path / "stage"
    bin_directory = tmp_path / "bin"
    script(
        bin_directory / "make",
        f'[ "$1" != install ] || {sys.executable} deploy/install.py --no-compile --destdir {stage}',
    )
    script(bin_directory / "sudo", 'exec "$@"')
    script(bin_directory / "systemd-tmpfiles", f"mkdir -p {cdi}")
    # The service is the installed command, on a simulated host.
    start = f"setsid dra-agent run --standalone --simulate dgx-h100 > {tmp_path}/log 2>&1 & echo $! > {tmp_path}/pid"
    script(bin_directory / "systemctl", f'[ "$1" != enable ] || {{ {start}; }}')
    cdi.mkdir()
    rootfs = make_rootfs(tmp_path / "rootfs")
    runtime, reasons = (None, ["busybox is not static"]) if rootfs is None else find(rootfs, cdi)
    container = ""
    if runtime is not None and rootfs is not None:
        # An image that needs no registry, and the flags that podman needs on this machine. $4 is the id of the device.
        container = shlex.join(runtime.command(["DEVICE"], rootfs, ["/bin/busybox", "env"])).replace("DEVICE", '"$4"')
    script(bin_directory / "podman", f'echo "$@" > {tmp_path}/podman; {container}')
    script(
        bin_directory / "dra-agent",
        f'DRA_AGENT_STATE_DIR={state} DRA_AGENT_CDI_DIR={cdi} exec {AGENT} "$@"',
    )
    claim = next(number for number, line in enumerate(commands) if "podman run" in line)
    try:
        run = [*commands[: claim + 1], f"cp {cdi}/*.json {tmp_path}/spec", *commands[claim + 1 :]]
        printed = paste(quickstart.timed(run, tmp_path / "times"), tmp_path)
    finally:
        subprocess.run(["bash", "-c", f"kill $(cat {tmp_path}/pid)"], check=False)
    words = (tmp_path / "podman").read_text().split()
    assert words[:2] == ["run", "--rm"]
    device = words[words.index("--device") + 1]
    kind, _, name = device.partition("=")
    assert kind == "dra-agent.internal/claim"
    assert f'"{name}"' in (tmp_path / "spec").read_text()
    assert (stage / "usr/local/bin/dra-agent").exists() and not list(cdi.glob("*.json"))
    left_out = (
        "make build and systemd; podman runs a local file system" if container else "make build and systemd; podman"
    )
    quickstart.record("Bare metal with podman", run, tmp_path / "times", left_out=left_out)
    if not container:
        pytest.skip(f"all lines work, but no container was started: {'; '.join(reasons)}")
    assert "DRA_AGENT_CLAIM=default/one-gpu\n" in printed


def test_quickstart_on_kubernetes_builds_the_image_that_simulates_hosts() -> None:
    build, *others = quickstart.lines("Kubernetes")
    assert any("simulate=" in line for line in others) == ("--target debug" in build)


def test_bare_metal_without_an_accelerator_writes_specs_where_podman_reads_them(tmp_path: Path) -> None:
    section = quickstart.README.read_text().partition("## Bare metal with podman")[2].partition("```")[0]
    settings = re.findall(r'`([a-z_]+ = "[^"`]+")`', section)
    file = tmp_path / "config.toml"
    file.write_text("\n".join(settings))
    config = load_config(argparse.Namespace(config=file), {})
    assert config.simulate == "dgx-h100" and config.cdi_dir == Path("/var/run/cdi")
