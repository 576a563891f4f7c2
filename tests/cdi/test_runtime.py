"""A real container with a claim's CDI id: it has the variables and the node of the simulated host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from container_runtime import require_runtime
from deadlines import a_minute
from dra_agent.cdi.claim import SpecDevice, build_spec
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.cdi.model import ContainerEdits
from dra_agent.cdi.runtime import Runtime, command_lines, find, make_rootfs
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.device_setup.notice import NoticeDirectory
from dra_agent.device_setup.notice.document import notice
from dra_agent.device_setup.notice.setup import container_edits
from dra_agent.host import Host
from dra_agent.inventory.model import Device, DeviceNode

DRIVER = "dra-agent.internal"


@pytest.fixture
def container(tmp_path: Path) -> tuple[Runtime, Path, Path]:
    return require_runtime(tmp_path)


def write_claim(host: Host, cdi: Path, more: ContainerEdits | None = None) -> list[str]:
    paths = ("/dev/dri/card0", "/dev/dri/renderD128")
    nodes = tuple(DeviceNode(path, str(host.dev_path(path)), "card") for path in paths)
    gpu = Device("gpu-0000-03-00-0", "gpu", "amd", "0000:03:00.0", {}, nodes=nodes)
    edits = EditProviders(host, directories=[cdi]).edits(gpu)
    if more is not None:
        edits = edits.with_setup(more)
    devices = [SpecDevice(ClaimDevice("n/gpu", gpu.name, ("gpu",)), gpu, edits)]
    spec = build_spec(DRIVER, ClaimRef("uid-1", "default", "train"), devices)
    SpecDirectory(cdi, DRIVER).write("uid-1", spec.data)
    return list(spec.ids[0])


def run(runtime: Runtime, ids: list[str], rootfs: Path, script: str) -> subprocess.CompletedProcess[str]:
    command = runtime.command(ids, rootfs, ["/bin/busybox", "sh", "-c", script])
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def test_container_gets_the_device_of_a_simulated_host(
    container: tuple[Runtime, Path, Path], simulated_host: Host, make_node: Callable[[Path, int, int], None]
) -> None:
    runtime, rootfs, cdi = container
    # 1:7 is /dev/full: it can be opened and has a distinctive error.
    make_node(simulated_host.dev_path("/dev/dri/card0"), 1, 7)
    simulated_host.dev_path("/dev/dri/renderD128").write_text("a file that stands for a node\n")
    ids = write_claim(simulated_host, cdi)
    result = run(
        runtime,
        ids,
        rootfs,
        "echo $DRA_AGENT_CLAIM $DRA_AGENT_REQUEST_GPU; ls -l /dev/dri; cat /dev/dri/renderD128;"
        " echo written > /dev/dri/renderD128; echo x > /dev/dri/card0",
    )
    assert "default/train gpu-0000-03-00-0" in result.stdout, result.stderr
    assert "a file that stands for a node" in result.stdout
    assert "1,   7" in result.stdout
    assert "No space left on device" in result.stderr, "the node exists and does not open the device"
    assert simulated_host.dev_path("/dev/dri/renderD128").read_text() == "written\n"
    without = run(runtime, [], rootfs, "echo claim=$DRA_AGENT_CLAIM; ls /dev/dri")
    assert "claim=\n" in without.stdout and "No such file" in without.stderr


def test_container_reads_the_notice_and_cannot_change_it(
    container: tuple[Runtime, Path, Path],
    simulated_host: Host,
    make_node: Callable[[Path, int, int], None],
    tmp_path: Path,
) -> None:
    runtime, rootfs, cdi = container
    make_node(simulated_host.dev_path("/dev/dri/card0"), 1, 7)
    simulated_host.dev_path("/dev/dri/renderD128").write_text("")
    notices = NoticeDirectory(tmp_path / "notices")
    notices.create("uid-1", a_minute())
    notices.create("another-claim", a_minute())
    ids = write_claim(simulated_host, cdi, container_edits(notices, "uid-1"))
    script = """
    cd $DRA_AGENT_NOTICE_DIR || exit
    pwd; cat notice.json; /bin/busybox id -u
    echo changed > notice.json; /bin/busybox rm notice.json; echo new > other; ls -a . ..
    while ! /bin/busybox grep -q hint notice.json; do /bin/busybox sleep 0.1; done; echo notified
    """
    command = runtime.command(ids, rootfs, ["/bin/busybox", "sh", "-c", script.replace("ls", "/bin/busybox ls")])
    with subprocess.Popen(
        command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        newer = NoticeDirectory(notices.path, current=lambda: notice("hint"))
        newer.update("uid-1", a_minute())
        printed += process.stdout.read()
    lines = printed.splitlines()  # also those of the runtime, which may warn
    assert "/run/dra-agent/notice/uid-1" in lines and "0" in lines, printed
    assert printed.count("Read-only file system") == 3 and "another-claim" not in printed
    assert printed.endswith("notified\n"), "a running container sees the file that replaced the first one"


def test_container_with_an_unknown_id_does_not_start(container: tuple[Runtime, Path, Path]) -> None:
    runtime, rootfs, _ = container
    result = run(runtime, [f"{DRIVER}/claim=nobody"], rootfs, "echo started")
    assert result.returncode != 0 and "started" not in result.stdout and "nobody" in result.stderr


def test_command_lines_contain_every_id() -> None:
    lines = command_lines(["nvidia.com/gpu=GPU-1", "dra-agent.internal/claim=u-gpu-0"], "cuda")
    assert lines[0] == ("podman run --rm --device nvidia.com/gpu=GPU-1 --device dra-agent.internal/claim=u-gpu-0 cuda")


def test_missing_runtime_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(tmp_path, tmp_path) == (None, ["neither podman nor ctr is installed"])
    assert make_rootfs(tmp_path) is None


def test_failing_runtime_is_skipped_with_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\necho noise >&2\necho 'crun: no cgroups' >&2\nexit 126\n")
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    runtime, reasons = find(tmp_path, Path("/var/run/cdi"))
    assert runtime is None or runtime.name == "ctr"
    assert reasons and all(reason.endswith(": crun: no cgroups") for reason in reasons)


def test_a_host_that_does_not_raise_limits_gets_containers_of_runc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    podman = tmp_path / "podman"
    podman.write_text('#!/bin/sh\ncase "$*" in\n*crun*) exit 1 ;;\n*--ulimit*) exit 0 ;;\nesac\nexit 1\n')
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    runtime, reasons = find(tmp_path, Path("/var/run/cdi"))
    assert runtime is not None and "--ulimit" in runtime.run and "crun" not in runtime.run
    assert len(reasons) == 1
