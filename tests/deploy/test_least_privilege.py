"""The chart grants exactly the permissions that the agent's code uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from deploy.rendering import BASE, ROOT, Render, only_object
from dra_agent.inventory.settings import DEFAULT_DRIVER
from dra_agent.kube_client import kinds

PACKAGE = ROOT / "python/dra_agent"
REFLECTOR = PACKAGE / "kube_client/reflector.py"
WITH_OTHER_CREDENTIALS = ("cli", "cluster", "explain")
"""Commands use the credentials of their user; cluster/ is the client itself."""
VERBS = {
    "get": {"get"},
    "list": {"list"},
    "watch": {"watch"},
    "create": {"create"},
    "replace": {"update"},
    "delete": {"delete"},
    # Server-side apply is a patch, and creates missing objects.
    "apply": {"patch", "create"},
}
Permission = tuple[str, str, str]
"""API group, resource, verb."""
EVICT_PODS = {("", "pods", "get"), ("", "pods", "delete"), ("", "pods/eviction", "create")}
NOMINATED_PODS = {("", "pods", "list"), ("", "pods", "watch")}
OPTIONAL = EVICT_PODS | NOMINATED_PODS
"""Permissions that only the values podEviction and bindingConditions grant: test_chart.py."""
UNNEEDED = {("", "nodes", "create")}
"""The agent applies to its existing Node: without this permission it cannot create one."""


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Return every call of a method of ApiClient, with its location. Reflectors call with the kind of a subclass."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in WITH_OTHER_CREDENTIALS or path == REFLECTOR:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in VERBS:
                continue
            owner = ast.unparse(node.func.value).rpartition(".")[2].lstrip("_")
            if owner in ("api", "server"):
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
    return found


def reflected_kinds() -> Iterator[kinds.Kind]:
    """Yield the kind that each subclass of Reflector lists and watches: the second argument of its constructor."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or "Reflector" not in map(ast.unparse, node.bases):
                continue
            (call,) = [
                call
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"
            ]
            kind = getattr(kinds, ast.unparse(call.args[1]), None)
            assert isinstance(kind, kinds.Kind), f"{path}:{call.lineno}: name the kind by its constant"
            yield kind


def used_permissions() -> set[Permission]:
    reflected = list(reflected_kinds())
    assert reflected, "the search finds no reflectors"
    found = {(kind.group, kind.plural, verb) for kind in reflected for verb in ("list", "watch")}
    for where, call in calls():
        assert isinstance(call.func, ast.Attribute)
        name = call.args[0].id if isinstance(call.args[0], ast.Name) else ""
        kind = getattr(kinds, name, None)
        assert isinstance(kind, kinds.Kind), f"{where}: name the kind by its constant, so that the permission is known"
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if "subresource" not in keywords:
            found |= {(kind.group, kind.plural, verb) for verb in VERBS[call.func.attr]}
            continue
        part = keywords["subresource"]
        verb = {"apply": "patch", "create": "create"}.get(call.func.attr)
        assert isinstance(part, ast.Constant) and isinstance(part.value, str) and verb is not None, where
        found.add((kind.group, f"{kind.plural}/{part.value}", verb))
        if (kind, part.value) == (kinds.RESOURCE_CLAIMS, "status"):
            # KEP-4817: entries of status.devices need this, too.
            found.add((kind.group, f"{kind.plural}/driver", "associated-node:patch"))
    return found


def granted_permissions() -> set[Permission]:
    return permissions_of(role()["rules"])


def permissions_of(rules: list[dict[str, list[str]]]) -> set[Permission]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def role() -> dict[str, list[dict[str, list[str]]]]:
    documents = yaml.safe_load_all((Path(BASE) / "rbac.yaml").read_text())
    (found,) = [document for document in documents if document["kind"] == "ClusterRole"]
    return dict(found)


def test_chart_grants_exactly_the_used_permissions() -> None:
    assert len(list(calls())) >= 10, "the search finds no calls"
    assert used_permissions() >= OPTIONAL and not OPTIONAL & granted_permissions()
    assert {
        "not granted": used_permissions() - OPTIONAL - UNNEEDED - granted_permissions(),
        "never used": granted_permissions() - used_permissions(),
    } == {
        "not granted": set(),
        "never used": set(),
    }


PAGE = ROOT / "docs/reference/rbac.md"
NOTHING_OPTIONAL = {"claimStatus": "off", "cordon": False, "nodeCondition": False}
EVERYTHING = {"podEviction": "evict", "podNotices": True, "bindingConditions": True, "nodeLabels": "node"}


def documented_permissions() -> list[tuple[str, set[Permission]]]:
    """Return the rows of the page: under which values a rule exists, and its permissions."""
    table = PAGE.read_text().partition("| API group |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]
    return [
        (
            condition,
            {(group if group != "core" else "", resource.partition(",")[0], verb.strip()) for verb in verbs.split(",")},
        )
        for group, resource, verbs, condition, reason in rows
        if reason
    ]


def test_the_page_has_every_permission_and_when_it_is_granted(render: Render) -> None:
    rows = documented_permissions()
    always = set().union(*(found for condition, found in rows if condition == "always"))
    assert always == permissions_of(only_object(render(NOTHING_OPTIONAL), "ClusterRole")["rules"])
    assert set().union(*(found for _, found in rows)) == permissions_of(
        only_object(render(EVERYTHING), "ClusterRole")["rules"]
    )


def test_the_threat_model_has_every_permission_beyond_the_node() -> None:
    page = (ROOT / "docs/explanation/threat-model.md").read_text()
    (listed,) = re.findall(r"^- \*\*Permissions beyond the node\*\*: (.*?)\n- ", page, re.MULTILINE | re.DOTALL)
    clauses = " ".join(listed.split()).split("; ")
    rows = [line for line in PAGE.read_text().splitlines() if "cannot be restricted" in line and line.startswith("|")]
    assert len(rows) >= 3
    for row in rows:
        _, resource, verbs, condition, _ = (cell.strip() for cell in row.strip("| ").split(" | "))
        values = re.findall(r"`([\w: ]+)`", condition)
        assert any(
            all(f"`{word}`" in clause for word in [*verbs.split(", "), *values])
            and resource.partition("/")[0] in clause
            for clause in clauses
        ), row


def test_no_rule_uses_wildcards() -> None:
    for rule in role()["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "nonResourceURLs" not in rule
        assert rule.get("resourceNames") == (
            [DEFAULT_DRIVER] if rule["resources"] == ["resourceclaims/driver"] else None
        )
