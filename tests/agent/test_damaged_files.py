"""Damage that a JSON decoder reports in other ways than wrong syntax: text that is not UTF-8, and deep nesting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.agent import host_ownership
from dra_agent.agent.config import Config
from dra_agent.conflicts import state_file as conflict_file
from dra_agent.control_socket.protocol import Connection
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.errors import AgentError, RetryableError
from dra_agent.health.state_file import HealthStateFile
from dra_agent.host import Host
from dra_agent.inventory.moved import MovedInterfaces
from dra_agent.inventory.nvidia.mig_ownership import note_path, read_note
from dra_agent.inventory.passthrough import VfioBindingStore
from dra_agent.json_decode import decode_json

DEEP = b'{"x":' + b"[" * 2_000
DAMAGE = {
    "deep": DEEP,
    "not UTF-8": b'{"boot_id":"\xff","driver":"\xff","name":"\xff","owner":"\xff","address":"\xff"}',
}


@pytest.fixture(params=list(DAMAGE.values()), ids=list(DAMAGE))
def damage(request: pytest.FixtureRequest) -> bytes:
    damage: bytes = request.param
    return damage


def test_one_error_for_every_damage(damage: bytes) -> None:
    for data in (damage, b"", b"\xff", b"{", b'"\xff"'):
        with pytest.raises(msgspec.DecodeError):
            decode_json(data, type=dict[str, str])
    assert decode_json(b'{"a": "b"}') == {"a": "b"}


class Document(msgspec.Struct):
    name: str = ""


def _state_file(folder: Path) -> tuple[Path, Callable[[], Any]]:
    files = StateFiles(folder / "setup", Document, max_bytes=1 << 20)
    files.write("a", Document("b"))
    return files.path("a"), lambda: files.read("a")


def _health(folder: Path) -> tuple[Path, Callable[[], Any]]:
    file = HealthStateFile(folder, "boot")
    file.write([])
    (path,) = folder.iterdir()
    return path, file.read


def _other_driver(folder: Path) -> tuple[Path, Callable[[], Any]]:
    config = Config(run_dir=folder, state_dir=folder / "state")
    (folder / "drivers").mkdir()
    return folder / "drivers" / "other.example.com", lambda: host_ownership.other_agents(config)


def _own_driver(folder: Path) -> tuple[Path, Callable[[], Any]]:
    config = Config(run_dir=folder, state_dir=folder / "state")
    config.state_dir.mkdir()
    (folder / "drivers").mkdir()
    closing: list[Callable[[], None]] = []

    def join() -> None:
        host_ownership.join(config, closing.append)
        for close in closing:
            close()

    return folder / "drivers" / config.driver_name, join


def _mig(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = note_path(folder, "0000:00:04.0")
    return path, lambda: read_note(Host(state=folder), "0000:00:04.0")


def _vfio(folder: Path) -> tuple[Path, Callable[[], Any]]:
    store = VfioBindingStore(folder)
    return store.path("0000:00:04.0"), lambda: store.read("0000:00:04.0")


def _conflicts(folder: Path) -> tuple[Path, Callable[[], Any]]:
    return folder / conflict_file.FILE_NAME, lambda: conflict_file.load_conflicts(folder)


def _moved(folder: Path) -> tuple[Path, Callable[[], Any]]:
    return folder / "net/0000.json", MovedInterfaces(folder).changed_by_claims


@pytest.mark.parametrize("make", [_state_file, _health, _other_driver, _own_driver, _mig, _vfio, _conflicts, _moved])
def test_a_damaged_file_stops_nothing(
    tmp_path: Path, damage: bytes, make: Callable[[Path], tuple[Path, Callable[[], Any]]]
) -> None:
    path, read = make(tmp_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(damage)
    try:
        read()
    except AgentError as error:
        assert str(path) in str(error)


def test_a_damaged_response_is_retryable(tmp_path: Path, damage: bytes) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "agent.sock"))
    listening.listen()

    def respond() -> None:
        with listening, listening.accept()[0] as client:
            client.recv(4096)
            client.sendall(damage[: len(damage) // 2])

    thread = threading.Thread(target=respond)
    thread.start()
    try:
        connection = Connection(tmp_path / "agent.sock", no_agent="none", hint="")
        with connection, pytest.raises(RetryableError, match="the response of the agent is incomplete"):
            connection.call(Document(), timeout=60.0)
    finally:
        thread.join()
