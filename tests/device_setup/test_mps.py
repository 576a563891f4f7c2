from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from deadlines import a_minute
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.mps import paths
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.device_setup.mps.sharing import ComputeMode, MpsSharing
from dra_agent.device_setup.shares import ShareConfig, ShareSetup
from dra_agent.device_setup.shares.limiter import DriverLimit, Limiter
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute, Capacity
from dra_agent.inventory.model import Device
from dra_agent.prepare.setup import SetupDevice
from eventually import DEADLINE_S, eventually

PROGRAM = Path(__file__).parent / "mps_control.py"


class Modes(ComputeMode):
    """Compute modes, kept here instead of in a driver."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.fails = False

    def get(self, uuid: str, address: str) -> int:
        return self.now.get(uuid, 0)

    def set(self, uuid: str, address: str, mode: int) -> None:
        if self.fails:
            raise RetryableError("NVML: no permission")
        self.now[uuid] = mode

    restore = set


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        lib = path / "lib"
        lib.mkdir()
        control = lib / "nvidia-cuda-mps-control"
        control.write_text(f"#!{sys.executable}\n{PROGRAM.read_text()}")
        control.chmod(0o755)
        self.host = Host(path / "sys", path / "dev", path / "proc", lib / "libnvidia-ml.so.1")
        self.modes = Modes()
        self.setup = self.again()

    def again(self) -> ShareSetup:
        """What an agent has that starts on the state of an earlier one."""
        self.mps = MpsSharing(self.host, self.path / "state", self.modes, deadline=DEADLINE_S)
        limiter = Limiter(self.host, self.path / "state", self.path / "host", DriverLimit(None, 1.0))
        self.setup = ShareSetup(self.mps, limiter)
        return self.setup

    def place(self, name: str = "gpu-a") -> MpsPaths:
        return MpsPaths.of(self.path / "state", self.host.dev, name)

    def commands(self, name: str = "gpu-a") -> list[str]:
        path = self.place(name).log / "commands"
        return path.read_text().splitlines() if path.exists() else []

    def pid(self, name: str = "gpu-a") -> int | None:
        path = self.place(name).pipe / "nvidia-cuda-mps-control.pid"
        return int(path.read_text()) if path.exists() else None


@pytest.fixture
def world() -> Iterator[World]:
    import shutil
    import tempfile

    # Pipes have short paths; pytest's folders do not.
    path = Path(tempfile.mkdtemp(prefix="mps-"))
    made = World(path)
    yield made
    for name in ("gpu-a", "gpu-b"):
        if (pid := made.pid(name)) is not None:
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)


def gpu(name: str = "gpu-a", **identity: str) -> Device:
    return Device(
        name,
        "gpu",
        "nvidia",
        "0000:01:00.0",
        {"memoryEnforcement": Attribute.of("mps")},
        {"memory": Capacity(value="80Gi"), "multiprocessors": Capacity.of(132)},
        allow_multiple_allocations=True,
        identity={"uuid": f"GPU-{name}", **identity},
        memory_limits={"mps": ""},
    )


def share(
    number: int, memory: str = "4Gi", multiprocessors: str = "0", device: Device | None = None, request: str = "gpu"
) -> SetupDevice:
    consumed = {"memory": memory, "multiprocessors": multiprocessors}
    found = device or gpu()
    allocated = ClaimDevice("n/gpu", found.name, (request,), f"share-{number}", consumed_capacity=consumed)
    return SetupDevice(allocated, found)


def test_a_container_gets_its_limits_and_the_path_of_its_daemon(world: World) -> None:
    item = share(1, "4Gi", "66")
    outcome = world.setup.set_up("uid-1", [item], ShareConfig(), None, a_minute())
    edits = outcome.edits[item.key]
    assert edits.env == (
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
    )
    place = world.place()
    assert [(mount.host_path, mount.container_path) for mount in edits.mounts] == [
        (str(place.pipe), "/tmp/nvidia-mps"),
        (str(place.shm), "/dev/shm"),
    ]
    assert [mount.options for mount in edits.mounts] == [
        ("rw", "nosuid", "nodev", "rbind", "rprivate"),
        ("rw", "nosuid", "nodev", "rbind", "rprivate", "noexec"),
    ]
    assert stat.S_IMODE(place.shm.stat().st_mode) == 0o1777
    assert world.setup.noted("uid-1") == [item.key] and world.setup.noted("uid-2") == []
    assert world.modes.now == {"GPU-gpu-a": 3}
    assert world.commands()[0] == "started GPU-gpu-a"
    assert "set_default_device_pinned_mem_limit 0 4096M" in world.commands()


def test_the_agents_umask_does_not_hide_the_pipes_from_other_users(world: World) -> None:
    before = os.umask(0o077)
    try:
        world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    finally:
        os.umask(before)
    place = world.place()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (place.folder.parent, place.folder, place.pipe)}
    assert all(mode & 0o001 for mode in modes.values()), modes
    assert stat.S_IMODE((place.pipe / "nvidia-cuda-mps-control.pid").stat().st_mode) == 0o644
    assert stat.S_IMODE(place.log.stat().st_mode) == 0o700


def test_one_daemon_for_all_shares_of_a_gpu_from_the_first_to_the_last(world: World) -> None:
    world.modes.now["GPU-gpu-a"] = 1
    for number, memory in enumerate(("4Gi", "8Gi", "2Gi")):
        world.setup.set_up(f"uid-{number}", [share(number, memory)], ShareConfig(), None, a_minute())
    received = world.commands()
    assert [line for line in received if line.startswith("started")] == ["started GPU-gpu-a"]
    # The limit of a client without a request is the largest share, and is set again only when that grows.
    assert [line for line in received if "default_device" in line] == [
        "set_default_device_pinned_mem_limit 0 4096M",
        "set_default_device_pinned_mem_limit 0 8192M",
    ]
    pid = world.pid()
    for number in (1, 0):
        world.setup.tear_down(f"uid-{number}", [f"gpu-a/share-{number}"], None, a_minute())
        assert world.pid() == pid
        assert world.modes.now == {"GPU-gpu-a": 3}
    world.setup.tear_down("uid-2", ["gpu-a/share-2"], None, a_minute())
    assert world.commands()[-1] == "quit"
    assert world.modes.now == {"GPU-gpu-a": 1}
    assert not world.place().pipe.exists() and not (world.path / "state/mps/gpu-a.json").exists()
    world.setup.tear_down("uid-2", ["gpu-a/share-2"], None, a_minute())


def test_running_servers_get_a_larger_limit(world: World) -> None:
    world.place().make()
    (world.place().log / "servers").write_text("4711\n")
    world.setup.set_up("uid-1", [share(1, "8Gi")], ShareConfig(), None, a_minute())
    assert "set_device_pinned_mem_limit 4711 0 8192M" in world.commands()


def test_a_repeat_changes_nothing_and_restarts_a_dead_daemon(world: World) -> None:
    first = world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    pid = world.pid()
    assert pid is not None
    assert world.setup.set_up("uid-1", [share(1)], ShareConfig(), first.record, a_minute()) == first
    assert world.pid() == pid
    kill(pid)
    assert world.setup.set_up("uid-1", [share(1)], ShareConfig(), first.record, a_minute()) == first
    assert world.pid() not in (None, pid)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    eventually(gone, f"process {pid} lives")


def test_a_daemon_that_dies_is_restarted_and_reported_once(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    assert world.mps.supervise() == {}
    pid = world.pid()
    assert pid is not None
    kill(pid)
    restarts = world.mps.supervise()
    assert list(restarts) == ["gpu-a"] and "restarted" in restarts["gpu-a"]
    assert world.pid() not in (None, pid)
    assert (
        world.commands()[-1] == "set_default_device_pinned_mem_limit 0 4096M"
        or "get_server_list" in world.commands()[-1]
    )
    assert world.mps.supervise() == {}


def test_a_daemon_that_does_not_start_is_reported_until_it_does(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    pid = world.pid()
    assert pid is not None
    (world.place().log / "refuses").touch()
    kill(pid)
    for _ in range(2):
        assert "does not start" in world.mps.supervise()["gpu-a"]
    (world.place().log / "refuses").unlink()
    assert "restarted" in world.mps.supervise()["gpu-a"]


def test_an_agent_that_was_killed_continues_with_the_daemon_and_ends_it(world: World) -> None:
    world.modes.now["GPU-gpu-a"] = 2
    first = world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    pid = world.pid()
    setup = world.again()
    assert setup.set_up("uid-1", [share(1)], ShareConfig(), first.record, a_minute()) == first
    assert world.pid() == pid
    world.again().roll_back("uid-1", ["gpu-a/share-1"], ShareConfig(), a_minute())
    assert world.pid() is None
    assert world.modes.now == {"GPU-gpu-a": 2}


def test_a_daemon_without_shares_after_a_crash_is_ended(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    world.modes.fails = True
    with pytest.raises(RetryableError):
        world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    world.modes.fails = False
    world.again()
    assert world.mps.supervise() == {}
    assert world.pid() is None
    assert world.modes.now == {"GPU-gpu-a": 0}


def test_a_daemon_has_time_to_end_and_is_waited_for(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    (world.place().log / "ends-late").touch()
    world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    assert world.commands()[-1] == "ended"


def test_nothing_but_logs_is_left_of_a_daemon(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    (world.place().pipe / "of-a-container").mkdir()
    world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    assert [path.name for path in world.place().folder.iterdir()] == ["log"]


def test_a_limit_that_the_daemon_refuses_is_an_error(world: World) -> None:
    world.place().make()
    (world.place().log / "denies").touch()
    with pytest.raises(RetryableError, match="set_default_device_pinned_mem_limit.*Unknown command"):
        world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())


def test_a_removal_does_not_wait_for_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / ".pipe.gone-0/of-a-container").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    assert paths.remove(tmp_path, "pipe") == tmp_path / ".pipe.gone-1"
    assert paths.remove(tmp_path, "pipe") is None
    assert paths.set_aside(tmp_path, "pipe") == [tmp_path / ".pipe.gone-0", tmp_path / ".pipe.gone-1"]


def test_a_program_that_cannot_be_run_ends_the_launch_with_its_reason(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    launch = [sys.executable, "-m", "dra_agent.device_setup.mps.launch", "-", str(tmp_path / "log"), str(program)]
    done = subprocess.run(launch, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, f"{program}: No such file or directory\n")


def test_a_reused_pid_in_an_old_file_is_not_killed(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    pid = world.pid()
    assert pid is not None
    kill(pid)
    other = subprocess.Popen(["/bin/sleep", "600"])
    try:
        (world.place().pipe / "nvidia-cuda-mps-control.pid").write_text(f"{other.pid}\n")
        world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_mig_device_has_a_daemon_and_the_mode_of_its_gpu_stays(world: World) -> None:
    device = msgspec.structs.replace(
        gpu("gpu-b", parent="gpu-whole", share="mps"), attributes={"memoryEnforcement": Attribute.of("none")}
    )
    outcome = world.setup.set_up("uid-1", [share(1, device=device)], ShareConfig(), None, a_minute())
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M" in outcome.edits["gpu-b/share-1"].env
    assert world.pid("gpu-b")
    assert world.modes.now == {}
    world.setup.tear_down("uid-1", ["gpu-b/share-1"], None, a_minute())
    assert world.modes.now == {}


def test_two_gpus_through_mps_are_not_for_one_request(world: World) -> None:
    both = [share(1), share(2, device=gpu("gpu-b"))]
    with pytest.raises(PermanentError, match="one control daemon only"):
        world.setup.set_up("uid-1", both, ShareConfig(), None, a_minute())
    world.setup.set_up(
        "uid-1", [both[0], share(2, device=gpu("gpu-b"), request="other")], ShareConfig(), None, a_minute()
    )
    assert world.pid("gpu-a") and world.pid("gpu-b")


@pytest.mark.parametrize("state", ["no mechanism", "not in shares"])
def test_a_repeat_never_prepares_a_share_without_its_limit(world: World, state: str) -> None:
    item = share(1)
    outcome = world.setup.set_up("uid-1", [item], ShareConfig(), None, a_minute())
    # After a restart of the host: its driver does not report its memory yet, or MPS cannot be used.
    now = msgspec.structs.replace(
        item.device,
        attributes={"memoryEnforcement": Attribute.of("none")} if state == "no mechanism" else {},
        allow_multiple_allocations=state == "no mechanism",
    )
    again = SetupDevice(item.allocated, now)
    assert world.again().set_up("uid-1", [again], ShareConfig(), outcome.record, a_minute()) == outcome
    unreported = SetupDevice(item.allocated, msgspec.structs.replace(now, identity={}))
    with pytest.raises(RetryableError, match="driver does not report it"):
        world.again().set_up("uid-1", [unreported], ShareConfig(), outcome.record, a_minute())


def test_a_claim_may_lower_its_part_of_the_multiprocessors_and_not_raise_it(world: World) -> None:
    for asked, wished, given in (("66", 20, "20"), ("66", 90, "50"), ("0", 90, "90"), ("1", None, "1")):
        item = share(1, multiprocessors=asked)
        outcome = world.setup.set_up("uid-1", [item], ShareConfig(wished), None, a_minute())
        assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={given}" in outcome.edits[item.key].env


def test_a_daemon_that_hangs_keeps_no_other_gpu_waiting(world: World) -> None:
    world.mps = MpsSharing(world.host, world.path / "state", world.modes, deadline=10 * DEADLINE_S)
    world.setup = ShareSetup(world.mps, world.setup.limiter)
    for name in ("gpu-a", "gpu-b"):
        world.setup.set_up(f"uid-{name}", [share(1, device=gpu(name))], ShareConfig(), None, a_minute())
    hangs = world.place("gpu-a").log / "hangs"
    hangs.touch()
    watching = threading.Thread(target=world.mps.supervise)
    watching.start()
    try:
        world.setup.set_up("uid-2", [share(2, device=gpu("gpu-b"))], ShareConfig(), None, a_minute())
        assert watching.is_alive()
    finally:
        hangs.unlink()
        watching.join(DEADLINE_S)


def test_a_pipe_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(PermanentError, match="shorter"):
        MpsPaths.of(Path("/" + "x" * 90), Path("/dev"), "gpu-a")


def test_a_missing_program_is_reported(world: World) -> None:
    (world.path / "lib/nvidia-cuda-mps-control").unlink()
    with pytest.raises(RetryableError, match="missing from this host"):
        world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    # The claim can still be released.
    world.setup.roll_back("uid-1", ["gpu-a/share-1"], ShareConfig(), a_minute())
    assert world.modes.now == {"GPU-gpu-a": 0}


@pytest.fixture
def outside_of_shared_memory() -> Iterator[Path]:
    """A folder that is there also for who has another /dev/shm, in which `tmp_path` may lie."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="dra-") as folder:
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_the_daemon_has_its_own_shared_memory(outside_of_shared_memory: Path) -> None:
    shm = outside_of_shared_memory / "shm"
    shm.mkdir()
    (shm / "mine").write_text("x")
    launch = [
        sys.executable,
        "-m",
        "dra_agent.device_setup.mps.launch",
        str(shm),
        str(outside_of_shared_memory / "log"),
    ]
    done = subprocess.run([*launch, "/bin/ls", "/dev/shm"], capture_output=True, text=True, check=False)
    if "namespace" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert (outside_of_shared_memory / "log").read_text() == "mine\n"
    assert not Path("/dev/shm/mine").exists()


def test_a_damaged_state_file_is_kept_and_refused(world: World) -> None:
    path = world.path / "state/mps/gpu-a.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(RetryableError, match="is damaged: .*; remove it, and check the GPU's compute mode"):
        world.mps.noted("uid-1")
    assert path.exists()
