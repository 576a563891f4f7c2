"""Which pod or container a process is in: cgroups as kubelets, container runtimes and systemd name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.processes.containers import Place, parse, place_of

UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
ID = "0123456789abcdef" * 4
SLICE = f"kubepods-pod{UID.replace('-', '_')}.slice"
BURSTABLE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods.slice/{SLICE}/cri-containerd-{ID}.scope",
        f"kubepods.slice/kubepods-burstable.slice/{BURSTABLE}/crio-{ID}.scope",
        f"kubepods/besteffort/pod{UID}/{ID}",
        f"kubepods/pod{UID}/crio-{ID}",
        f"kubelet/kubepods/burstable/pod{UID}/{ID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-{SLICE}/cri-containerd-{ID}.scope",
    ],
)
def test_the_kubelets_cgroups_name_the_pod(path: str) -> None:
    assert parse(f"0::/{path}\n") == Place("pod", UID, path)
    assert parse(f"0::/{path}/made/by/the/container (deleted)\n") == Place("pod", UID, path)
    # Version 1, and a hybrid, in which version 2 has no limits.
    assert parse(f"12:memory:/{path}\n3:cpu,cpuacct:/{path}\n2:misc:/\n0::/\n") == Place("pod", UID)


@pytest.mark.parametrize(
    "path", [f"machine.slice/libpod-{ID}.scope", f"system.slice/docker-{ID}.scope", f"docker/{ID}", f"default/{ID}"]
)
def test_containers_are_distinguished_from_processes_of_the_host(path: str) -> None:
    assert parse(f"0::/{path}/container\n") == Place("container", cgroup=path)


@pytest.mark.parametrize("path", ["", "init.scope", "system.slice/sshd.service", "user.slice/user-1000.slice/a.scope"])
def test_processes_of_the_host(path: str) -> None:
    assert parse(f"0::/{path}\n").kind == "host"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"0::/user.slice/user-1000.slice/user@1000.service/{SLICE}/crio-{ID}.scope", "not below a kubelet's root"),
        (f"0::/machine.slice/libpod-{ID}.scope/kubepods/pod{UID}/{ID}", "not below a kubelet's root"),
        (f"0::/user.slice/user-1000.slice/user@1000.service/libpod-{ID}.scope", "user.slice"),
        (f"0::/../../{BURSTABLE}/crio-{ID}.scope", "namespace"),
        (f"0::/kubepods/pod{UID[:-1]}/{ID}", "names no pod"),
        ("0::/kubepods.slice", "names no pod"),
        (f"5:memory:/kubepods/pod{UID}/{ID}\n0::/kubepods/pod{UID[:-1]}0/{ID}", "different pods"),
        (f"5:memory:/kubepods/pod{UID}/{ID}\n0::/system.slice/a.service", "different pods"),
    ],
)
def test_names_that_a_user_could_have_chosen_are_unknown(text: str, reason: str) -> None:
    place = parse(text + "\n")
    assert (place.kind, place.pod_uid) == ("unknown", "") and reason in place.reason


def test_the_pod_is_the_outermost_name() -> None:
    other = UID[:-1] + "0"
    assert parse(f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{other}/{ID}\n").pod_uid == UID


@pytest.mark.parametrize("separator", ["\r", "\v", "\x1c", "\u2028"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    """The kernel permits all other characters in names of cgroups, which a container can choose below its own."""
    other = f"kubepods/pod{UID[:-1]}0/{ID}"
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cgroup").write_bytes(f"0::/kubepods/pod{UID}/{ID}/x{separator}0::/{other}\n".encode())
    assert place_of(tmp_path, 1) == Place("pod", UID, f"kubepods/pod{UID}/{ID}")


def test_a_process_that_has_ended_is_nowhere(tmp_path: Path) -> None:
    assert place_of(tmp_path, 1) is None
