"""Every module of a vendor is in the import contract of its vendor, and no other module names a vendor in a branch."""

from __future__ import annotations

import ast
import configparser
import re
from functools import cache
from pathlib import Path

import pytest

from dra_agent.inventory.vendors import GPU_VENDORS

PYTHON = Path(__file__).parents[2] / "python"
ROOT, PACKAGE = PYTHON.parent, PYTHON / "dra_agent"
VENDORS = [vendor.name for vendor in GPU_VENDORS.values()]
NAMED = re.compile(rf"(?:^|_)(?:{'|'.join(VENDORS)}|nvml|mig)(?:_|$)")
MODULES = {".".join(path.relative_to(PYTHON).with_suffix("").parts): path for path in PYTHON.rglob("*.py")}


@cache
def contract(vendor: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return parser[f"importlinter:contract:{vendor}"]


@cache
def expression(pattern: str) -> re.Pattern[str]:
    any_parents = re.escape(pattern).replace(r"\.\*\*\.", r"(?:\.\w+)*\.")
    return re.compile(rf"{any_parents}(?:\.|$)")


def matches(module: str, pattern: str) -> bool:
    """Whether a module is one that the pattern of a contract names, or inside of it."""
    return expression(pattern).match(module) is not None


@cache
def patterns(vendor: str, *keys: str) -> tuple[str, ...]:
    return tuple(pattern for key in keys for pattern in contract(vendor)[key].split())


def vendor_of(module: str) -> str | None:
    """Return the vendor whose contract names the module; None for a module without a vendor."""
    for vendor in VENDORS:
        named = patterns(vendor, "protected_modules", "allowed_importers")
        if any(matches(module, pattern) for pattern in named if pattern != "dra_simulate"):
            return vendor
    return None


@pytest.mark.parametrize("vendor", VENDORS)
def test_modules_with_the_name_of_a_vendor_are_known_to_it_alone(vendor: str) -> None:
    assert contract(vendor)["type"] == "protected"
    assert f"dra_agent.**.{vendor}" in patterns(vendor, "protected_modules")
    assert f"dra_agent.**.{vendor}" in patterns(vendor, "allowed_importers")


@pytest.mark.parametrize("vendor", VENDORS)
def test_contracts_name_modules_that_exist(vendor: str) -> None:
    for pattern in patterns(vendor, "protected_modules", "allowed_importers"):
        assert any(matches(module, pattern) for module in MODULES), f".importlinter: {pattern} does not exist"


def test_modules_that_are_named_after_a_vendor_are_in_its_contract() -> None:
    named = [module for module in MODULES if any(NAMED.search(part) for part in module.split("."))]
    assert len(named) > 30
    missing = [module for module in named if vendor_of(module) is None and not module.startswith("dra_simulate.")]
    assert not missing, f".importlinter: the contract of their vendor does not name {missing}"


def names_in_branches(path: Path) -> set[str]:
    found = set[str]()
    text = path.read_text()
    for node in ast.walk(ast.parse(text if any(vendor in text for vendor in VENDORS) else "")):
        if isinstance(node, ast.Compare):
            found |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and one.value in VENDORS}
    return found


def test_no_module_without_a_vendor_compares_with_a_name() -> None:
    assert names_in_branches(PACKAGE / "device_setup/timeslice/setup.py") == {"nvidia"}
    found = {
        module: names
        for module, path in MODULES.items()
        if not module.startswith("dra_simulate.") and vendor_of(module) is None and (names := names_in_branches(path))
    }
    assert not found, f"the registry of vendors states what generic parts ask, inventory/vendors.py: {found}"
