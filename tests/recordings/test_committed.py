"""Recordings of real and simulated machines: what the agent concludes about them stays the same.

A change that is meant is accepted with DRA_AGENT_UPDATE_SUMMARIES=1, which writes the new summaries.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from dra_agent import simulate
from dra_agent.cli.main import main
from dra_agent.simulate.recording import Recording

from .conclusions import conclusions
from .pack import DATA, unpack
from .replay import replay
from .summary import summary

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz"))
MAX_TOTAL_BYTES = 400 << 10


@pytest.fixture(params=NAMES)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path)


def test_the_summary_is_the_same(recording: Path, tmp_path: Path) -> None:
    found = summary(simulate.build(str(recording), tmp_path / "host"))
    path = DATA / f"{recording.name}.json"
    if os.environ.get("DRA_AGENT_UPDATE_SUMMARIES") == "1":
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    assert found == msgspec.json.decode(path.read_bytes())


def test_strict_replay_and_the_fake_agree(recording: Path, tmp_path: Path) -> None:
    host = simulate.build(str(recording), tmp_path / "host")
    if not (recording / "nvml.jsonl").exists():
        return
    with replay(recording) as misses:
        strict = conclusions(host)
    # An agent that makes more calls than the one that recorded cannot conclude the same.
    assert misses or strict == conclusions(host)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["topology"], "0000:1a:00.0"),
        (["devices"], "gpu-0000-1a-00-0-mig-3g-40gb-0"),
        (["slices", "-o", "yaml"], "gpu-0000-1a-00-0-mig-3g-40gb-0"),
        (["doctor", "--all"], "checks passed"),
    ],
)
def test_commands_show_a_recording(
    command: list[str], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpack("simulated-mixed", tmp_path)
    flags = ["--simulate", str(folder), "--state-dir", str(tmp_path / "state")]
    assert main([*command, *flags]) in (0, 1)
    assert shown in capsys.readouterr().out


def test_recordings_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) <= MAX_TOTAL_BYTES


def test_committed_recordings_have_no_identity(recording: Path) -> None:
    assert not Recording(recording).manifest.identity
