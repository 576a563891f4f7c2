"""The command line: one error message, the right exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded
from dra_agent.cli.parser import COMMANDS

AGENT = Path(sys.executable).with_name("dra-agent")


def run(*arguments: str, directory: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DRA_AGENT_STATE_DIR": str(directory / "state"), "DRA_AGENT_CDI_DIR": str(directory)}
    if stdin:
        command: list[str | Path] = [AGENT, *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, input=stdin, timeout=120, env=environment, cwd=directory
        )
    else:
        result = preloaded.run(arguments, env=environment, cwd=directory)
    assert "Traceback" not in result.stderr
    return result


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str, tmp_path: Path) -> None:
    result = run(command, "--help", directory=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"usage: dra-agent {command}" in result.stdout


def test_every_command_is_listed(tmp_path: Path) -> None:
    text = run("--help", directory=tmp_path).stdout
    assert all(f"    {command} " in text for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nope",),
        ("--nope",),
        ("devices", "--nope"),
        ("claim",),
        ("claim", "apply"),
        ("claim", "wait", "x", "--timeout", "-1"),
        ("topology", "-o", "xml"),
    ],
)
def test_usage_errors_exit_with_2_and_show_the_usage(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*arguments, directory=tmp_path)
    assert result.returncode == 2
    assert "usage: dra-agent" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["topology", "devices", "slices"])
def test_an_unknown_profile_names_the_known_ones(command: str, tmp_path: Path) -> None:
    result = run(command, "--simulate", "dgx", directory=tmp_path)
    assert result.returncode == 2
    assert "'dgx'" in result.stderr
    assert "dgx-h100" in result.stderr


@pytest.mark.parametrize("command", ["topology", "devices", "slices"])
def test_a_missing_sysfs_is_one_message(command: str, tmp_path: Path) -> None:
    result = run(command, "--sysfs-root", str(tmp_path / "nope"), directory=tmp_path)
    assert result.returncode in (1, 2)
    assert len(result.stderr.splitlines()) == 1
    assert str(tmp_path / "nope") in result.stderr


@pytest.mark.parametrize("arguments", [("claims",), ("claim", "list"), ("claim", "get", "x"), ("claim", "delete", "x")])
def test_without_an_agent_the_error_names_the_command_to_start_one(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*arguments, directory=tmp_path)
    assert result.returncode == 1
    assert "no agent is running here" in result.stderr
    assert "dra-agent run --standalone" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "claim.yaml:2: not YAML"),
        ("", "claim.yaml: holds no object"),
        ("- 1", "claim.yaml:1: not an object"),
        (
            "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata:\n  name: a\nspec:\n  devices:\n"
            "    requests:\n    - name: r\n      exactly:\n        deviceClassName: gpu\n        cuont: 2\n",
            "claim.yaml:11: spec.devices.requests[0].exactly.cuont: unknown field",
        ),
        (
            "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata:\n  name: a\nspec:\n  selectors:\n"
            "  - cel:\n      expression: device.drivr == 'x'\n",
            "claim.yaml:8: spec.selectors[0].cel.expression: ",
        ),
    ],
)
def test_an_invalid_file_is_named_with_line_and_field(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "claim.yaml").write_text(text)
    result = run("claim", "apply", "-f", "claim.yaml", directory=tmp_path)
    assert result.returncode == 2
    assert f"dra-agent: {message}" in result.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = run("claim", "apply", "-f", "nope.yaml", directory=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "dra-agent: nope.yaml: cannot be read: No such file or directory\n"


def test_a_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    script = f"{AGENT} topology --simulate cpu-only -o json | head -c 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [("simulate", "profiles"), ("simulate", "profiles", "-o", "json"), ("topology", "--simulate", "cpu-only")],
)
def test_a_full_disk_at_standard_output_is_one_message(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([AGENT, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    message = "dra-agent: standard output: cannot be written: No space left on device; the output is not complete\n"
    assert (result.returncode, result.stderr) == (1, message)


@pytest.mark.parametrize("seconds", ["abc", "-1", "3601", "nan"])
def test_an_invalid_timeout_is_refused_with_its_range(seconds: str, tmp_path: Path) -> None:
    result = run("claim", "wait", "x", f"--timeout={seconds}", directory=tmp_path)
    assert result.returncode == 2
    assert f"argument --timeout: {seconds} is not a number of seconds between 0 and 3600" in result.stderr


def test_run_without_an_api_server_creates_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
    flags = [f"--{name}-dir={tmp_path / name}" for name in ("state", "kubelet", "cdi")]
    result = subprocess.run([AGENT, "run", *flags], capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 2
    assert "give --kubeconfig FILE, or run without Kubernetes: --standalone" in result.stderr
    assert list(tmp_path.iterdir()) == []


TEMPLATE = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: a}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}}
"""
UNKNOWN_KIND = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a}
spec:
  devices:
    requests: [{name: r, exactly: {deviceClassName: gpu}}]
    config:
    - opaque:
        driver: dra-agent.internal
        parameters:
          apiVersion: config.dra-agent.internal/v1
          kind: TimeSlicConfig
"""


def test_objects_for_pods_only_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("# a comment\n" + TEMPLATE)
    result = run("claim", "apply", "-f", "template.yaml", directory=tmp_path)
    assert result.returncode == 2
    assert "dra-agent: template.yaml:3: a ResourceClaimTemplate is for pods of a cluster; write a" in result.stderr


def test_apply_refuses_the_configuration_that_validate_refuses(tmp_path: Path) -> None:
    (tmp_path / "claim.yaml").write_text(UNKNOWN_KIND)
    validated = run("config", "validate", "claim.yaml", directory=tmp_path)
    assert validated.returncode == 1
    (message,) = validated.stdout.splitlines()
    applied = run("claim", "apply", "-f", "claim.yaml", directory=tmp_path)
    assert applied.returncode == 2
    assert applied.stderr.splitlines() == [f"dra-agent: {message}"]


def test_fractional_capacity_is_rounded_in_tables_and_exact_elsewhere(tmp_path: Path) -> None:
    table = run("devices", "--simulate", "flex170", directory=tmp_path).stdout
    assert "~3.2Gi" in table and "16Gi" in table and "3435973836" not in table
    one = run("devices", "gpu-0000-9a-00-1", "--simulate", "flex170", directory=tmp_path).stdout
    assert "3435973836 (~3.2Gi)" in one


def test_topology_counts_cards_and_virtual_functions_separately(tmp_path: Path) -> None:
    tree = run("topology", "--simulate", "flex170", directory=tmp_path).stdout
    assert tree.startswith("2 NUMA nodes, 4 GPUs, 2 NICs, 1 NVMe drive, 15 other functions, 4 virtual functions")
    assert "Flex 170" in tree
    assert "H100" in run("topology", "--simulate", "dgx-h100", directory=tmp_path).stdout
