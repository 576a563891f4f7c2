"""Dependencies: the agent imports each declared one, and builds take the versions of the lock file."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUBCOMMANDS = {"build", "clippy", "develop", "install", "metadata", "mutants", "run", "rustc", "test", "zigbuild"}
"""Subcommands of cargo and maturin that resolve dependencies."""
PROGRAM = r"\$\(CARGO\)|\$\(CARGO_MUTANTS\)|\bcargo|\bmaturin"
"""Programs with these subcommands, as make and shells start them."""
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
LOCKED = "--locked"


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def imported_modules(wanted: set[str]) -> set[str]:
    """Return those that the agent imports. Modules of the agent that contain none of the names are not parsed."""
    found: set[str] = set()
    for path in (ROOT / "python/dra_agent").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text if any(name in text for name in wanted - found) else "")):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    return found & wanted


def test_the_agent_imports_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in project["dependencies"]}
    providers = {module: set(map(canonical, names)) for module, names in packages_distributions().items()}
    wanted = {module for module, names in providers.items() if names & required}
    used = set[str]().union(*(providers[module] for module in imported_modules(wanted)))
    assert required <= used, f"no module of the agent imports {sorted(required - used)}: see docs/adr/0048"


def constants(node: ast.AST) -> list[str]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def is_program(node: ast.expr) -> bool:
    """Whether it is cargo or maturin: a word, the end of a path, or a variable of that name."""
    if isinstance(node, ast.Name):
        return node.id == "cargo"
    return bool({"cargo", "maturin", "bin/maturin"} & set(constants(node)))


def commands(path: Path) -> Iterator[tuple[int, bool]]:
    """Yield the line of each command of cargo or maturin, and whether it, or a list that it unpacks, has `--locked`."""
    text = path.read_text()
    if "cargo" not in text and "maturin" not in text:
        return
    tree = ast.parse(text)
    locked = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and LOCKED in constants(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.List) or not node.elts or not is_program(node.elts[0]):
            continue
        if SUBCOMMANDS & set(constants(node)) or any(isinstance(one, ast.Name) for one in node.elts[1:]):
            unpacked = {
                one.value.id for one in node.elts if isinstance(one, ast.Starred) and isinstance(one.value, ast.Name)
            }
            yield node.lineno, LOCKED in constants(node) or bool(unpacked & locked)


def test_every_build_is_locked() -> None:
    found = [
        (f"{path.relative_to(ROOT)}:{line}", is_locked)
        for folder in ("benchmarks", "demo", "deploy", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, is_locked in commands(path)
    ]
    started = re.compile(rf"(?:{PROGRAM}) (?:{'|'.join(sorted(SUBCOMMANDS))})\b[^`\n]*")
    for path in (ROOT / "Makefile", ROOT / ".ci/run", ROOT / "fuzz/rustc", *PAGES, *ROOT.glob("rust/**/*.rs")):
        commands_of_file = started.findall(path.read_text().replace("\\\n", " "))
        found += [(f"{path.relative_to(ROOT)}: {command}", LOCKED in command) for command in commands_of_file]
    assert len(found) >= 14, found
    assert not [where for where, is_locked in found if not is_locked], f"add {LOCKED}"


def test_a_wheel_that_pip_builds_is_locked() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]["locked"] is True
