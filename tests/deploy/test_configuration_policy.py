"""The policy about configuration in the chart, and what the generator of its rules refuses to translate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pytest
from deploy.pages import configuration_policy

from deploy.rendering import Render, objects_by_name
from dra_agent.agent.setup_registry import known_setups

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
NAME = "dra-agent-configuration"


@pytest.mark.parametrize("driver", ["dra-agent.internal", "gpu.example.com"])
def test_the_policy_checks_configuration_for_the_driver_of_the_release(render: Render, driver: str) -> None:
    objects = render({"driverName": driver})
    spec = objects_by_name(objects, POLICY)[NAME]["spec"]
    assert objects_by_name(objects, BINDING)[NAME]["spec"] == {"policyName": NAME, "validationActions": ["Deny"]}
    assert spec["failurePolicy"] == "Fail"
    assert spec["matchConditions"][-1]["expression"].endswith(f'entry.?opaque.driver.orValue("") == "{driver}")')
    variables = {item["name"]: item["expression"] for item in spec["variables"]}
    assert variables["driver"] == f'"{driver}"'
    assert {kind for _, kind in known_setups()} <= variables.keys()
    assert configuration_policy.DRIVER_NAME not in str(spec)


def test_the_policy_is_optional(render: Render) -> None:
    objects = render({"configurationPolicy": {"create": False}})
    assert not {NAME} & {*objects_by_name(objects, POLICY), *objects_by_name(objects, BINDING)}
    assert NAME in objects_by_name(render({"admissionPolicy": {"create": False}}), POLICY)


class Open(msgspec.Struct):
    """Accepts unknown fields."""


UNSUPPORTED = [
    float,
    int,
    str,
    bool,
    tuple[int, ...],
    dict[str, int],
    Any,
    Open,
    Annotated[str, msgspec.Meta(pattern="(?<=a)b")],
]


@pytest.mark.parametrize("part", UNSUPPORTED, ids=str)
def test_a_schema_without_a_translation_is_an_error(monkeypatch: pytest.MonkeyPatch, part: Any) -> None:
    documented = {"__doc__": "Parameters."}
    parameters = msgspec.defstruct("Parameters", [("part", part)], namespace=documented, forbid_unknown_fields=True)
    setup = SimpleNamespace(kind=("dra-agent.internal/v1", "Parameters"), parameters=parameters)
    monkeypatch.setattr(configuration_policy, "known_setups", lambda: {setup.kind: setup})
    with pytest.raises(configuration_policy.UnsupportedSchemaError):
        configuration_policy.text()
