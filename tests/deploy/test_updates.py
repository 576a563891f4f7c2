"""Rolling updates of the DaemonSet: how many nodes at a time, and which values restart the agents."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from deploy.rendering import RefusedError, Render, only_object

RULE = """
[claims]
release_gone_after = 60
"""


def strategy(render: Render, **values: Any) -> dict[str, Any]:
    found = only_object(render(values), "DaemonSet")["spec"]["updateStrategy"]
    assert isinstance(found, dict)
    return found


def rolling(render: Render, **values: Any) -> dict[str, Any]:
    found = strategy(render, **values)
    assert found["type"] == "RollingUpdate"
    return dict(found["rollingUpdate"])


def test_a_part_of_the_fleet_is_updated_at_a_time(render: Render) -> None:
    assert rolling(render) == {"maxSurge": "10%", "maxUnavailable": 0}
    assert rolling(render, updateStrategy={"maxSurge": 3}) == {"maxSurge": 3, "maxUnavailable": 0}
    spec = only_object(render({"minReadySeconds": 30, "revisionHistoryLimit": 2}), "DaemonSet")["spec"]
    assert (spec["minReadySeconds"], spec["revisionHistoryLimit"]) == (30, 2)
    assert only_object(render(), "DaemonSet")["spec"]["minReadySeconds"] > 0


def test_host_network_updates_do_not_wait_for_a_port(render: Render) -> None:
    # Two agents cannot listen on one port of the node.
    assert rolling(render, hostNetwork=True) == {"maxSurge": 0, "maxUnavailable": "20%"}
    values = {"maxSurge": "50%", "maxUnavailable": 2}
    assert rolling(render, hostNetwork=True, updateStrategy=values) == {"maxSurge": 0, "maxUnavailable": 2}


@pytest.mark.parametrize("surge", [0, "0%"])
def test_without_surge_nodes_are_unavailable(render: Render, surge: object) -> None:
    assert rolling(render, updateStrategy={"maxSurge": surge}) == {"maxSurge": 0, "maxUnavailable": "20%"}


def test_nodes_can_be_updated_by_hand(render: Render) -> None:
    assert strategy(render, updateStrategy={"type": "OnDelete"}) == {"type": "OnDelete"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"updateStrategy": {"type": "Recreate"}}, "'/updateStrategy/type'"),
        ({"updateStrategy": {"maxSurge": "10"}}, "'/updateStrategy/maxSurge'"),
        ({"updateStrategy": {"maxUnavailable": 0}}, "'/updateStrategy/maxUnavailable'"),
        ({"updateStrategy": {"rollingUpdate": {}}}, "'rollingUpdate'"),
        ({"minReadySeconds": -1}, "'/minReadySeconds'"),
    ],
)
def test_invalid_strategies_are_refused(render: Render, values: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as error:
        render(values)
    assert message in str(error.value)


def config_hash(render: Render, config: str) -> str:
    metadata = only_object(render({"config": config}), "DaemonSet")["spec"]["template"]["metadata"]
    return str(metadata["annotations"]["dra-agent.internal/config-sha256"])


def test_a_configuration_change_restarts_the_agent(render: Render) -> None:
    text = only_object(render({"config": RULE}), "ConfigMap")["data"]["config.toml"]
    assert tomllib.loads(text) == {"log_level": "info", **tomllib.loads(RULE)}
    assert config_hash(render, RULE) != config_hash(render, "")


def test_comments_and_format_of_the_configuration_restart_no_agent(render: Render) -> None:
    assert config_hash(render, RULE) == config_hash(render, f"# NICs belong to another driver.\n{RULE}\n\n")


def test_keys_that_are_reloaded_restart_no_agent(render: Render) -> None:
    assert config_hash(render, RULE) == config_hash(
        render, f"log-level = 'debug'\n{RULE}[inventory]\nexclude = ['true']"
    )


def test_a_change_of_the_log_level_reaches_the_file_and_restarts_no_agent(render: Render) -> None:
    before = render({"config": RULE})
    after = render({"config": RULE, "logLevel": "debug"})
    assert only_object(before, "DaemonSet") == only_object(after, "DaemonSet")
    assert tomllib.loads(only_object(after, "ConfigMap")["data"]["config.toml"])["log_level"] == "debug"


@pytest.mark.parametrize("key", ["log_level", "log-level"])
def test_the_log_level_of_the_configuration_has_precedence(render: Render, key: str) -> None:
    text = only_object(render({"config": f"{key} = 'warning'\n{RULE}"}), "ConfigMap")["data"]["config.toml"]
    assert tomllib.loads(text) == {key: "warning", **tomllib.loads(RULE)}


def test_a_chart_version_alone_restarts_no_agent(render: Render) -> None:
    labels = only_object(render(), "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert set(labels) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
