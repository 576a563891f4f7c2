"""The binaries of the cluster, built once from the Go modules next to this package and cached for later clusters."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from .prerequisites import OLDEST_GO, check, go_version

MODULES = Path(__file__).resolve().parents[1] / "modules"
KUBERNETES = "DRA_AGENT_TEST_KUBERNETES"
"""The environment variable with the minor version of Kubernetes, as 1.34; without it, the newest one is used."""
GATES = "DRA_AGENT_TEST_GATES"
"""The environment variable that, as `on`, turns on the gates of DRA that are on by default since 1.36."""
GATES_SINCE_1_36 = (
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
)
"""They exist since 1.34: kubernetes/pkg/features/kube_features.go."""


@dataclass(frozen=True)
class Module:
    """One go.mod and the binaries built from it."""

    name: str
    versioned: str
    """The module path whose version is the version of the binaries."""
    programs: dict[str, str]
    """File name → Go package."""
    tags: str = ""
    ldflags: str = "-s -w"
    go_mod: str = ""
    """The directory of the go.mod; by default `name`."""
    completed: str = ""
    """A required module that is published without files which the programs need: it is copied, and the files in
    `additions`, next to the go.mod, are added."""
    unpacked: bool = False
    """Whether `versioned` is built from a copy with the version of Go of the go.mod, because its own requires a patch
    release that OLDEST_GO does not have."""

    @property
    def source(self) -> Path:
        """The directory of the go.mod."""
        return MODULES / (self.go_mod or self.name)

    def version(self) -> str:
        """Return the version of its go.mod: `v1.37.1`."""
        text = (self.source / "go.mod").read_text()
        found = re.search(rf"^\s*(?:require )?{re.escape(self.versioned)} (v\S+)", text, re.MULTILINE)
        assert found, f"{self.source}/go.mod does not require {self.versioned}"
        return found[1]


def kubernetes_versions() -> tuple[str, ...]:
    """Return the minor versions, in addition to the newest one, that have a go.mod: `("1.34", "1.35")`."""
    return tuple(sorted(path.name.removeprefix("kubernetes-") for path in MODULES.glob("kubernetes-*")))


def gates() -> dict[str, bool]:
    """Return the gates of this run that differ from the defaults of its version of Kubernetes."""
    return dict.fromkeys(GATES_SINCE_1_36, True) if os.environ.get(GATES) == "on" else {}


def without_taints() -> dict[str, bool]:
    """Return the gates of a cluster without taints of devices.

    DRADeviceTaintRules requires DRADeviceTaints. Kubernetes 1.34 has one gate for both.
    """
    has_rules = not kubernetes_version().startswith("1.34.")
    return dict.fromkeys(("DRADeviceTaints", "DRADeviceTaintRules") if has_rules else ("DRADeviceTaints",), False)


def runtime_config() -> dict[str, bool]:
    """Return the groups of the API that the gates of this run need: with 1.34, kube-scheduler watches DeviceTaintRules.

    It schedules nothing until it has listed them. Later versions have a gate for them.
    """
    return {"resource.k8s.io/v1alpha3": True} if gates() and kubernetes_version().startswith("1.34.") else {}


def releases_extended_resources() -> bool:
    """Return whether the devices of a pod with an extended resource are free after the pod.

    Kubernetes 1.34 never releases its claim: the claim stays reserved for the pod that was deleted.
    """
    return not kubernetes_version().startswith("1.34.")


def kubernetes_version() -> str:
    """Return the version of Kubernetes of this run: `1.37.1`."""
    return _kubernetes().version().removeprefix("v")


def _kubernetes() -> Module:
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
    minor = os.environ.get(KUBERNETES, "")
    if minor and minor not in kubernetes_versions():
        sys.exit(f"{KUBERNETES}={minor}: no such version; there are {', '.join(kubernetes_versions())}")
    go_mod = f"kubernetes-{minor}" if minor else "kubernetes"
    programs = {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}
    module = Module("kubernetes", "k8s.io/kubernetes", programs, go_mod=go_mod)
    version = module.version()
    major, minor = version.removeprefix("v").split(".")[:2]
    # A build from the module cache has no version; the apiserver's compatibility checks need one.
    package = "k8s.io/component-base/version"
    flags = f"-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    return replace(module, ldflags=flags)


def modules() -> list[Module]:
    """Return the modules of all cluster components, and helm for the chart."""
    containerd = "github.com/containerd/containerd/v2"
    shipped = {name: f"{containerd}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")}
    return [
        Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
        Module("containerd", containerd, shipped, tags="no_btrfs no_zfs no_devmapper"),
        _kubernetes(),
        Module("helm", "helm.sh/helm/v4", {"helm": "helm.sh/helm/v4/cmd/helm"}),
    ]


def directory(*only: Module) -> Path:
    """Return the directory of the binaries of these versions: `~/.cache/dra-agent-cluster/etcd-v3.6.1_...`.

    By default they are those of `modules()`.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dra-agent-cluster" / "_".join(f"{module.name}-{module.version()}" for module in only or modules())


def programs() -> Path:
    """Return the directory of all binaries; builds missing ones. MissingError if the machine lacks a prerequisite.

    The first complete build takes about 10 minutes on two cores.
    """
    where = directory()
    check(go=any(not (where / name).exists() for module in modules() for name in module.programs))
    for module in modules():
        for name in module.programs:
            build(module, name, where)
    return where


def build(module: Module, name: str, where: Path) -> None:
    """Build one binary of a module in a directory, unless it exists there.

    Waits for another process that builds the same binary.
    """
    if (where / name).exists():
        return
    where.mkdir(parents=True, exist_ok=True)
    with (where / f".lock-{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / name).exists() and not _link(module, name, where / name):
            _compile(module, name, where / name)


def main(names: list[str]) -> str:
    """Build the named binaries, which require only Go, or all that a cluster requires; return the directory."""
    if not names:
        return str(programs())
    if go_version() < OLDEST_GO:
        return f"{', '.join(names)}: not built, because no Go {'.'.join(map(str, OLDEST_GO))} or newer is on PATH"
    for module in modules():
        for name in module.programs.keys() & set(names):
            build(module, name, directory())
    return str(directory())


def _link(module: Module, name: str, target: Path) -> bool:
    """Link the binary of the same version in the directory of other versions of the other modules, if there is one."""
    for other in target.parent.parent.glob(f"*/{name}"):
        if f"{module.name}-{module.version()}" in other.parent.name.split("_"):
            os.link(other, target)
            return True
    return False


def _compile(module: Module, name: str, target: Path) -> None:
    began = time.monotonic()
    print(f"building {name} {module.version()} ...", file=sys.stderr, flush=True)
    unfinished = target.with_name(f".{name}")
    command = ["go", "build", "-ldflags", module.ldflags, "-o", str(unfinished)]
    command += ["-tags", module.tags] if module.tags else []
    environment = {**os.environ, "CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix=f"{module.name}-") as temporary:
        source = module.source
        if module.completed:
            source = _complete(module, Path(temporary))
        elif module.unpacked:
            source = _use_unpacked(module, Path(temporary))
        subprocess.run([*command, module.programs[name]], cwd=source, env=environment, check=True)
    unfinished.rename(target)
    print(f"built {name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def module_directory(module: Module, path: str) -> Path:
    """Return the directory in Go's module cache of a module that `module` requires, or of itself; downloads it."""
    command = ["go", "list", "-m", "-json", path]
    subprocess.run(["go", "mod", "download", path], cwd=module.source, check=True)
    found = subprocess.run(command, cwd=module.source, check=True, capture_output=True, text=True).stdout
    return Path(json.loads(found)["Dir"])


def _complete(module: Module, directory: Path) -> Path:
    """Copy the go.mod to a directory, with a copy of the incomplete module and its additional files; return it."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(module.source / name, directory)
    completed = directory / "completed"
    shutil.copytree(module_directory(module, module.completed), completed)
    for path in [completed, *completed.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)  # the module cache is read-only
    shutil.copytree(module.source / "additions", completed, dirs_exist_ok=True)
    replacement = f"-replace={module.completed}=./{completed.name}"
    subprocess.run(["go", "mod", "edit", replacement], cwd=directory, check=True)
    return directory


def unpacked_source(module: Module) -> Path:
    """Return a copy of the source of `versioned`, kept with the binaries; downloads it.

    Go downloads and verifies a module that requires a newer Go, and then refuses to use it.
    """
    where = directory(module)
    source = where / "source"
    if source.exists():
        return source
    name = f"{module.versioned}@{module.version()}"
    # Not checked: the exit status is 1 if the module requires a newer Go.
    found = subprocess.run(
        ["go", "mod", "download", "-json", name], cwd="/", check=False, capture_output=True, text=True
    ).stdout
    downloaded = json.loads(found or "{}")
    assert "Zip" in downloaded, f"{name} is not downloaded: {downloaded.get('Error')}"
    expected = f"{module.versioned} {module.version()} {downloaded['Sum']}"
    assert expected in (module.source / "go.sum").read_text().splitlines(), f"{expected} is not in the go.sum"
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".source-", dir=where) as temporary:
        with zipfile.ZipFile(downloaded["Zip"]) as archive:
            archive.extractall(temporary)
        unfinished = Path(temporary) / name
        go = re.search(r"^go (\S+)$", (module.source / "go.mod").read_text(), re.MULTILINE)
        assert go, f"{module.source}/go.mod has no version of Go"
        subprocess.run(["go", "mod", "edit", f"-go={go[1]}"], cwd=unfinished, check=True)
        unfinished.rename(source)
    return source


def _use_unpacked(module: Module, directory: Path) -> Path:
    """Copy the go.mod and its main package to a directory, where the unpacked module is used; return it."""
    shutil.copytree(module.source, directory, dirs_exist_ok=True)
    replacement = f"-replace={module.versioned}={unpacked_source(module)}"
    subprocess.run(["go", "mod", "edit", replacement], cwd=directory, check=True)
    return directory


if __name__ == "__main__":
    print(main(sys.argv[1:]))
