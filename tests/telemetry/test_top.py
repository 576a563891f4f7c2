"""`dra-agent top`: tables of what the sampler last read, in process; and one running agent."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import preloaded
from dra_agent.agent.about import describe
from dra_agent.agent.config import Config
from dra_agent.cli import terminal
from dra_agent.cli.main import main
from dra_agent.control_socket.server import Server
from dra_agent.telemetry.accounting import TelemetryFailure
from dra_agent.telemetry.control import TelemetryServer
from dra_simulate import inject
from eventually import eventually
from telemetry.rig import INTERVAL_S, Rig, claim, held

GPU = "gpu-0000-00-04-0"
NIC = "nic-0000-00-05-0"
Top = Callable[..., tuple[int, str, str]]


@contextmanager
def serving(
    start: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], Coroutine[Any, Any, None]]
) -> Iterator[None]:
    """Run a server on an event loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def top(short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Top:
    """Run the command on the state directory `short_path`."""
    for name in [name for name in os.environ if name.startswith("DRA_AGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*flags: str) -> tuple[int, str, str]:
        code = main(["top", "--state-dir", str(short_path), *flags])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def served(rig: Rig, short_path: Path) -> Iterator[Rig]:
    server = TelemetryServer(
        short_path,
        "node-1",
        INTERVAL_S,
        lambda: rig.sampler.snapshot(),
        lambda: rig.inventory,
        lambda: list(rig.entries),
        lambda: rig.now_s,
    )
    with serving(server.start, server.stop):
        yield rig


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose first column is `heading`."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(heading))
    table = []
    for line in lines[first + 1 :]:
        if not line:
            break
        table.append(line.split())
    return table


def busy(rig: Rig, root: Path) -> None:
    """One GPU at 40 % of one claim, and a NIC of two."""
    rig.entries = [claim("train", held(GPU), held(NIC)), claim("other", held(NIC))]
    inject.load(root, "0", utilization=(40, 5), power_milliwatts=55_000, temperature=61, energy_millijoules=0)
    rig.sample()


def test_the_tables_have_the_last_values_and_their_age(served: Rig, root: Path, top: Top) -> None:
    busy(served, root)
    served.now_s += 4
    code, text, errors = top("--once")
    assert (code, errors) == (0, "")
    assert text.splitlines()[0] == "host node-1: sampled 4 s ago, every 10 s"
    device = next(row for row in rows(text, "DEVICE") if row[0] == GPU)
    assert device[1:2] + device[3:] == ["40%", "55W", "61C", "team-a/train"]
    assert device[2].startswith("0.0Gi/1")
    claims = rows(text, "CLAIM")
    assert ["team-a/train", GPU, "40%"] in [row[:3] for row in claims]
    # Two claims hold the NIC: its values are those of neither.
    shared = [row for row in claims if row[1] == NIC]
    assert [row[0] for row in shared] == ["team-a/other", "team-a/train"]
    assert all(set(row[2:]) == {"-"} for row in shared)


def test_a_claim_on_a_partition_has_a_row_for_it_and_none_for_its_gpu(served: Rig, root: Path, top: Top) -> None:
    parent = msgspec.structs.replace(held(GPU, share="a-partition", shared=True), request="")
    served.entries = [claim("part", held(NIC), parent)]
    served.sample()
    text = top("--once")[1]
    assert [row[:2] for row in rows(text, "CLAIM")] == [["team-a/part", NIC]]
    assert next(row[-1] for row in rows(text, "DEVICE") if row[0] == GPU) == "team-a/part", "it holds a part of the GPU"


def test_counters_are_in_the_wide_tables(served: Rig, root: Path, top: Top) -> None:
    served.entries = [claim("train", held(GPU), held(NIC))]
    served.xids = {GPU: 1}
    for received_gib in (3, 5):
        inject.traffic(root, "ens5", received_bytes=received_gib << 30, sent_bytes=1 << 30)
        served.sample()
    text = top("--once", "-o", "wide")[1]
    assert "XID" not in top("--once")[1]

    def cells(heading: str, device: str) -> dict[str, str]:
        lines = text[text.index(f"\n{heading} ") + 1 :].splitlines()
        names, *rows = (re.split(r" {3,}", line.strip()) for line in lines[: [*lines, ""].index("")])
        return next(dict(zip(names, row, strict=True)) for row in rows if device in row)

    assert cells("DEVICE", NIC)["NETWORK"] == "5.0Gi/1.0Gi"
    assert cells("CLAIM", NIC)["NETWORK"] == "2.0Gi/0.0Gi", "since the first sample of the claim"
    assert [cells("DEVICE", GPU)[name] for name in ("NETWORK", "ECC", "XID")] == ["-", "0/0", "1"]


def test_a_request_samples_nothing(served: Rig, root: Path, top: Top) -> None:
    busy(served, root)
    inject.load(root, "0", utilization=(90, 90))
    assert "90%" not in top("--once")[1]
    served.now_s += 1000
    code, text, _ = top("--once")
    assert code == 0
    assert text.startswith("host node-1: no current sample; the agent samples every 10 s\n")
    assert [row[2] for row in rows(text, "CLAIM")] == ["-", "-", "-"]


def test_json_has_the_values_with_their_units(served: Rig, root: Path, top: Top) -> None:
    busy(served, root)
    inject.load(root, "0", utilization=(0, 0), energy_millijoules=7_000_000)
    served.sample()
    served.sample()
    document = json.loads(top("-o", "json")[1])
    assert (document["node"], document["interval_seconds"], document["age_seconds"]) == ("node-1", 10, 0)
    gpu = next(one for one in document["devices"] if one["device"] == GPU)
    assert gpu["claims"] == ["team-a/train"] and gpu["values"]["energy_joules"] == 7000
    train = next(one for one in document["claims"] if one["device"] == GPU)
    assert train["values"]["gpu_utilization_ratio"] == 0 and train["values"]["energy_joules"] == 7000
    assert train["idle_seconds"] == 10
    shared = next(one for one in document["claims"] if one["device"] == NIC)
    assert shared["values"] == {} and "idle_seconds" not in shared


def test_rows_are_sorted_with_unknown_values_last(served: Rig, root: Path, top: Top) -> None:
    busy(served, root)
    for field in ("utilization", "memory", "power", "temperature", "idle"):
        assert rows(top("--sort", field)[1], "CLAIM")[0][:2] == ["team-a/train", GPU], field
    assert [row[0] for row in rows(top("--sort", "claim")[1], "CLAIM")] == [
        "team-a/other",
        "team-a/train",
        "team-a/train",
    ]
    assert rows(top("--sort", "device")[1], "DEVICE")[0][0] == GPU
    assert top("--sort", "color")[0] == 2


@pytest.mark.parametrize("flags", [(), ("-o", "wide")])
def test_no_name_is_folded_or_cut_on_a_terminal(
    served: Rig, root: Path, top: Top, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    name = "a-claim-with-a-name-of-many-words-that-is-long"
    served.entries = [claim(name, held(GPU))]
    inject.load(root, "0", utilization=(40, 5), power_milliwatts=55_000, energy_millijoules=0)
    served.sample()
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    text = top("--once", *flags)[1]
    assert any(line.startswith(f"team-a/{name}   {GPU}") for line in text.splitlines())
    if not flags:
        assert all(len(line) <= 80 for line in text.splitlines())
    else:
        assert "PRODUCT" in text and "ENERGY" in text


def test_incomplete_devices_and_hostile_text_are_shown_without_control_characters(
    served: Rig, root: Path, top: Top
) -> None:
    served.entries = [claim("a\x1b[2Jb", held(GPU))]
    inject.fail(root, "nvmlDeviceGetUtilizationRates", 15)
    served.sample()
    text = top()[1]
    assert "\x1b" not in text and "team-a/a\\x1b[2Jb" in text
    assert f"incomplete: {GPU}: nvml: " in text


def test_a_screen_has_no_more_rows_than_lines(
    served: Rig, root: Path, top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(served, root)
    snapshot = served.sampler.snapshot()
    failures = tuple(TelemetryFailure("nvml", GPU, f"{number} {'long ' * 40}") for number in range(3))
    monkeypatch.setattr(served.sampler, "snapshot", lambda: msgspec.structs.replace(snapshot, failures=failures))
    served.entries += [claim(f"claim-{number:02}", held(NIC)) for number in range(30)]

    def interrupt(duration_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    code, text, _ = top()
    assert code == 130
    before, _, screen = text.partition("\x1b[?1049h")
    screen, _, after = screen.partition("\x1b[?1049l")
    assert (before, after) == ("", "")
    lines = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", screen).splitlines()
    assert sum(max(1, -(-len(line) // 80)) for line in lines) < 24, "with lines that the terminal folds"
    assert any(line.startswith(f"incomplete: {GPU}: nvml: 2 long") for line in lines)
    assert "host node-1" in screen and "21 more rows: `dra-agent top --once` prints all" in screen


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_without_a_terminal_the_values_are_printed_as_they_change(
    served: Rig, root: Path, top: Top, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    busy(served, root)

    def other_values() -> None:
        inject.load(root, "0", utilization=(90, 5), energy_millijoules=0)
        served.sample()

    steps: Iterator[Callable[[], None]] = iter([lambda: None, other_values, lambda: None])

    def next_step(duration_s: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    with monkeypatch.context() as patched:
        patched.setattr("dra_agent.cli.watch.time.sleep", next_step)
        code, text, _ = top("--interval", "1", "-o", output)
    assert code == 130
    if output == "table":
        assert text.count("host node-1: sampled ") == 2
        assert text.count(" 40% ") == text.count(" 90% ") == 2
    else:
        documents = list(map(json.loads, text.splitlines()) if output == "json" else yaml.safe_load_all(text))
        assert [one["devices"][0]["values"]["gpu_utilization_ratio"] for one in documents] == [0.4, 0.9]


def test_without_an_agent(top: Top) -> None:
    code, text, errors = top()
    assert (code, text) == (1, "") and "no agent is running here" in errors


def test_an_agent_without_telemetry_names_the_line_to_add(top: Top, short_path: Path) -> None:
    async def about(line: bytes) -> Any:
        return describe(Config())

    server = Server(short_path / "reclaim.sock", about, line_limit=4096)
    with serving(server.start, server.stop):
        code, text, errors = top()
    assert (code, text) == (1, "")
    assert "telemetry is off" in errors and "`interval = 15` in the section [telemetry]" in errors


@pytest.fixture(scope="module")
def agent(vm: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """A standalone agent that samples every second; runs commands on its state directory."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
    folder = tmp_path_factory.mktemp("agent")
    (folder / "agent.toml").write_text("[telemetry]\ninterval = 1\n")
    with tempfile.TemporaryDirectory(prefix="dra-") as state, (folder / "log").open("w") as log:
        command = ["run", "--standalone", "--state-dir", state, "--cdi-dir", str(folder / "cdi")]
        command += ["--simulate", "vm-1gpu", "--node-name", "node-a", "--config", str(folder / "agent.toml")]
        process = preloaded.Command(command, stdout=log, stderr=log, env=variables)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return preloaded.run([*words, "--state-dir", state], env=variables)

        try:
            eventually(lambda: "info ready" in (folder / "log").read_text())
            yield run
        finally:
            process.kill()
            process.wait(60)


def test_a_running_agent_responds(agent: Callable[..., Any]) -> None:
    applied = agent("claim", "apply", "-f", "examples/classes/gpu.yaml", "-f", "examples/claims/one-gpu.yaml")
    assert applied.returncode == 0, applied.stderr

    def has_values() -> bool:
        document = json.loads(agent("top", "-o", "json").stdout)
        return any(one["values"].get("power_watts") for one in document["claims"])

    eventually(has_values)
    shown = agent("top")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("host node-a: sampled ")
    assert [row[:2] for row in rows(shown.stdout, "CLAIM")] == [["default/one-gpu", GPU]]
