"""The agent's configuration in the chart: Helm refuses what it can decide, and never what an agent accepts."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rendering import CHART, ROOT, RefusedError, Render, only_object
from dra_agent.agent.config import load_config
from dra_agent.errors import UsageError


def refusal(render: Render, config: str) -> str:
    with pytest.raises(RefusedError) as error:
        render({"config": config})
    return str(error.value)


def rejected_by_agent(config: str, file: Path) -> bool:
    file.write_text(config)
    try:
        load_config(argparse.Namespace(config=file), {})
    except UsageError:
        return True
    return False


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ("log_level = 'info'\nb = = 2\n", "line 2"),
        ('simulate = "\n', "line 1"),
        ("[inventory]\nhost_uplink = exclude\n", "line 2"),
        ("simulate = 'a'\nsimulate = 'a'\n", "line 2"),
    ],
)
def test_text_that_is_not_toml_is_refused_with_its_line(
    render: Render, tmp_path: Path, config: str, place: str
) -> None:
    message = refusal(render, config)
    assert "config: not TOML" in message and place in message
    assert rejected_by_agent(config, tmp_path / "config.toml")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("sate_dir = '/x'", "config: unknown key sate_dir; known keys: cdi_dir, claim_status"),
        ("[inventory]\nuplink = 'x'", "config: unknown key inventory.uplink; known keys: attributes, displays"),
        ("Error = 1", "config: not TOML: "),
        ("[inventory]\npools = 'no'", 'config: inventory.pools: "no" must be one of family, product'),
        ("[inventory]\nexclude = 'x'", "config: inventory.exclude: must be a list, not text"),
        ("[inventory]\nexclude = [1]", "config: inventory.exclude[0]: must be text, not an integer"),
        ("inventory = 3", "config: inventory: must be a table, not an integer"),
        ("device_metadata = 'yes'", "config: device_metadata: must be true or false, not text"),
        ("simulate = 2026-01-01", "config: simulate: must be text, not struct"),
        ("[claims]\nrelease_gone_after = -1", "config: claims.release_gone_after: -1 is too small"),
        ("[claims]\nrelease_gone_after = 90000", "config: claims.release_gone_after: 90000 is larger than 86400"),
        ("[claims]\nrelease_gone_after = inf", "config: claims.release_gone_after: +Inf is larger than 86400"),
        ("[reclaim]\nlead_seconds = 0.0", "config: reclaim.lead_seconds: 0 is too small"),
        ("[reclaim.aws]\nspot = 'yes'", 'config: reclaim.aws.spot: "yes" must be one of ignore, hint, notice'),
        ("[[inventory.partition]]\nmode = 'mig'", "config: inventory.partition[0].when is required"),
        ("[health]\nfatal_xids = [79.5]", "config: health.fatal_xids[0]: must be an integer, not a number"),
        ("[[inventory.partition]]\nwhen = 'true'\nmode = 'xyz'", "config: inventory.partition[0].mode"),
    ],
)
def test_invalid_keys_and_values_are_refused_with_their_path(
    render: Render, tmp_path: Path, config: str, message: str
) -> None:
    assert message in refusal(render, config)
    assert rejected_by_agent(config, tmp_path / "config.toml"), "Helm must not refuse what an agent accepts"


@pytest.mark.parametrize(
    "config",
    [
        "",
        "# nothing\n",
        "log-level = 'debug'\nclaim_status = true",
        "[claims]\nrelease_gone_after = 0",
        "[reclaim]\ncordon = false\nhook = ['/bin/true', 'x']\n[[reclaim.node_taints]]\nkey = 'a'\nseconds = 5",
        "[[inventory.attributes]]\nwhen = 'true'\nset = { rack = 'r1', slot = 3, ok = true }",
        "[health]\nfatal_xids = [79, 95]\nrecovery_seconds = 1.5",
        (ROOT / "systemd/config.toml").read_text().replace("standalone = true", ""),
    ],
)
def test_valid_configuration_is_accepted(render: Render, tmp_path: Path, config: str) -> None:
    assert not rejected_by_agent(config, tmp_path / "config.toml")
    assert config in only_object(render({"config": config}), "ConfigMap")["data"]["config.toml"]


@pytest.mark.parametrize("section", ["[otlp]\nendpoint = 'http://collector:4318'\ninterval = 1\n", "otlp = 3\n"])
def test_a_section_of_an_earlier_version_is_accepted_and_restarts_no_agent(
    render: Render, tmp_path: Path, section: str
) -> None:
    assert not rejected_by_agent(section, tmp_path / "config.toml")
    kept = only_object(render({"config": section}), "DaemonSet")
    assert kept == only_object(render({"config": ""}), "DaemonSet"), "the hash has only keys that agents use"
    known = refusal(render, "sate_dir = '/x'").partition("known keys: ")[2]
    assert "node_labels" in known and "otlp" not in known


def test_an_older_helm_names_the_version_that_it_needs(helm: Path, tmp_path: Path) -> None:
    users = [path.name for path in (CHART / "templates").iterdir() if "fromToml ." in path.read_text()]
    assert users == ["_requires-helm-3.17.tpl"]
    # Helm 3.16 does not know the function, as no Helm knows this one.
    shutil.copytree(CHART, tmp_path / "chart")
    file = tmp_path / "chart/templates" / users[0]
    file.write_text(file.read_text().replace("fromToml .", "fromTom ."))
    done = subprocess.run([helm, "template", "x", tmp_path / "chart"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "parse error at (dra-agent/templates/_requires-helm-3.17.tpl" in done.stderr, done.stderr


def test_the_init_container_checks_the_file_without_access_to_the_node(render: Render, tmp_path: Path) -> None:
    pod = only_object(render({"privileged": True, "driverName": "gpu.example.com"}), "DaemonSet")["spec"]["template"][
        "spec"
    ]
    (check,) = pod["initContainers"]
    (agent,) = pod["containers"]
    assert (check["image"], check["resources"]) == (agent["image"], agent["resources"])
    assert check["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    (mount,) = check["volumeMounts"]
    variables = {entry["name"]: entry["value"] for entry in agent["env"] if "value" in entry}
    assert check["args"] == ["config", "check", variables["DRA_AGENT_CONFIG"]]
    assert {entry["name"]: entry["value"] for entry in check["env"]}.items() <= variables.items()
    assert mount in agent["volumeMounts"] and variables["DRA_AGENT_CONFIG"].startswith(mount["mountPath"])
    file = tmp_path / "config.toml"
    for text, code in (("", 0), ("[inventory]\nexclude = ['device.nonsense(']\n", 1)):
        file.write_text(text)
        command = [sys.executable, "-m", "dra_agent", *check["args"][:2], str(file)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == code
