"""Socket paths: the usual names, and shorter ones that fit into 107 bytes."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.errors import UsageError
from dra_agent.kubelet_plugin.sockets import MAX_PATH_BYTES, SocketPaths, socket_paths, sockets_of_instances

KUBELET = Path("/var/lib/kubelet")
UID = "8a3f4d5e-1c2b-4f6a-9d8e-7b6c5a4f3e2d"
LONG = "a" * 59 + ".com"


@pytest.mark.parametrize(
    ("driver", "uid", "service", "registration"),
    [
        ("gpu.example.com", "", "plugins/gpu.example.com/dra.sock", "plugins_registry/gpu.example.com-reg.sock"),
        (
            "gpu.example.com",
            UID,
            f"plugins/gpu.example.com/dra-{UID}.sock",
            f"plugins_registry/gpu.example.com-{UID}-reg.sock",
        ),
        (LONG, "", f"plugins/{LONG}/dra.sock", f"plugins_registry/{LONG}-reg.sock"),
        (LONG, UID, f"plugins/{LONG}/HASH8.sock", "plugins_registry/dra-HASH16-reg.sock"),
    ],
)
def test_socket_paths_have_the_usual_names(driver: str, uid: str, service: str, registration: str) -> None:
    import base64
    import hashlib

    def digest(text: str, size: int) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()

    paths = socket_paths(KUBELET, driver, uid)
    assert paths.service == KUBELET / service.replace("HASH8", digest(uid, 8))
    assert paths.registration == KUBELET / registration.replace("HASH16", digest(f"{driver}\0{uid}", 16))


@given(
    length=st.integers(5, 90),
    driver=st.integers(1, 63),
    uid=st.sampled_from(["", UID, "x" * 64, "f" * 32]),
)
def test_a_path_fits_the_limit_and_belongs_to_one_instance(length: int, driver: int, uid: str) -> None:
    directory = Path("/" + "k" * length)
    try:
        paths = socket_paths(directory, "d" * driver, uid)
    except UsageError as error:
        shortest = directory / "plugins_registry" / f"dra-{'h' * 22}-reg.sock"
        assert len(bytes(shortest)) > MAX_PATH_BYTES
        assert "at most 107 bytes" in str(error) and "--kubelet-dir" in str(error)
        return
    for path in paths.distinct:
        assert len(bytes(path)) <= MAX_PATH_BYTES
    if uid:
        other = socket_paths(directory, "d" * driver, "another-" + uid[:40])
        assert not set(other.distinct) & set(paths.distinct)
    else:
        assert paths.registration != socket_paths(directory, "e" * driver).registration


def test_the_limit_is_that_of_the_kernel(tmp_path: Path) -> None:
    def bind(length: int) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(tmp_path / ("s" * (length - len(bytes(tmp_path)) - 1))))

    bind(MAX_PATH_BYTES)
    with pytest.raises(OSError, match="too long"):
        bind(MAX_PATH_BYTES + 1)


@pytest.mark.parametrize("uid", ["../x", "a/b", ".", "-a", "a" * 65, "a b", "\0"])
def test_a_uid_with_path_separators_is_refused(uid: str) -> None:
    with pytest.raises(UsageError, match="--pod-uid"):
        socket_paths(KUBELET, "d", uid)


def test_the_limit_counts_bytes_not_characters() -> None:
    directory = Path("/" + "ä" * 25)
    assert len(str(directory / f"plugins_registry/{'d' * 25}-reg.sock")) < MAX_PATH_BYTES
    for path in socket_paths(directory, "d" * 25).distinct:
        assert len(str(path).encode()) <= MAX_PATH_BYTES


def test_shortened_names_in_one_directory_identify_no_driver(tmp_path: Path) -> None:
    shared = tmp_path / "plugins_registry" / "dra-short-reg.sock"
    shared.parent.mkdir()
    (shared.parent / "dra-another.sock").touch()
    assert list(sockets_of_instances(SocketPaths(shared, shared), "d")) == []


def test_a_name_of_exactly_the_limit_is_used() -> None:
    name = f"{'d' * 20}-reg.sock"
    directory = Path("/" + "k" * (MAX_PATH_BYTES - len(f"//plugins_registry/{name}")))
    path = socket_paths(directory, "d" * 20).registration
    assert path.name == name and len(bytes(path)) == MAX_PATH_BYTES


@pytest.mark.parametrize("driver", [1, 18, 25, 27, 30, 33, 36, 45])
def test_sockets_of_another_instance_are_found_by_remaining_names(driver: int) -> None:
    """The service socket may have the whole uid in its name although that of the registration has no room for it."""
    name = "d" * driver
    # As long as the usual directory; the tmp_path of pytest is longer.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="tmp") as short:
        directory = Path(short)
        assert len(bytes(directory)) == len(bytes(KUBELET))
        own, dead = socket_paths(directory, name, "another"), socket_paths(directory, name, UID)
        for path in (*own.distinct, *dead.distinct):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        instances = set(sockets_of_instances(own, name))
        assert instances >= set(dead.distinct) and not instances & set(own.distinct)
