"""Every committed input of a Python target keeps its properties; `rust/fuzz/tests/corpus.rs` has the Rust targets."""

from __future__ import annotations

import importlib

import pytest

from fuzz.targets import CORPUS, PYTHON


@pytest.mark.parametrize("name", [target.name for target in PYTHON])
def test_every_committed_input_keeps_the_properties_of_its_target(name: str) -> None:
    check = importlib.import_module(f"fuzz.inputs.{name}").check
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs, f"no corpus of {name}"
    for path in inputs:
        try:
            check(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"fuzz/corpus/{name}/{path.name}: {type(error).__name__}: {error}") from error
