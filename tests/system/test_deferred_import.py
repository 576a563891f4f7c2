"""A deferred module is imported at its first use, and is then the same as without deferral."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dra_agent.deferred_import import defer_import

Library = Callable[[str], ModuleType]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """Import a library that imports its module `spare`, which has the given source and is deferred."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def library(source: str) -> ModuleType:
        folder = tmp_path / "library_with_a_spare"
        folder.mkdir()
        (folder / "__init__.py").write_text("from library_with_a_spare import spare\n\nimported = []\n")
        (folder / "spare.py").write_text(f"import library_with_a_spare\n\n{source}")
        importlib.invalidate_caches()
        defer_import("library_with_a_spare.spare")
        return importlib.import_module("library_with_a_spare")

    yield library
    for name in set(sys.modules) - before:
        if name.startswith("library_with_a_spare"):
            del sys.modules[name]


def test_a_module_is_imported_when_a_name_in_it_is_used(library: Library) -> None:
    package = library("library_with_a_spare.imported.append(1)\nvalue = 7\n")
    bound = package.spare
    assert package.imported == []
    assert bound.value == 7
    assert sys.modules["library_with_a_spare.spare"] is package.spare
    assert package.spare.__spec__ is not None
    assert (bound.value, package.spare.value, package.imported) == (7, 7, [1])


def test_a_name_that_the_module_does_not_have_is_an_attribute_error(library: Library) -> None:
    package = library("value = 7\n")
    with pytest.raises(AttributeError, match="missing"):
        _ = package.spare.missing


def test_the_error_of_an_import_is_raised_at_each_use(library: Library) -> None:
    package = library("library_with_a_spare.imported.append(1)\nraise ImportError('no C library')\n")
    bound = package.spare
    for number in (1, 2):
        with pytest.raises(ImportError, match="no C library"):
            _ = bound.value
        assert len(package.imported) == number


def test_threads_that_use_it_at_once_import_it_once(library: Library) -> None:
    package = library("library_with_a_spare.imported.append(1)\nvalue = 7\n")
    bound, found = package.spare, []
    together = threading.Barrier(8)

    def use() -> None:
        together.wait()
        found.append(bound.value)

    threads = [threading.Thread(target=use) for _ in range(together.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, package.imported) == ([7] * 8, [1])


def test_a_module_that_is_imported_already_stays(library: Library) -> None:
    package = library("value = 7\n")
    assert package.spare.value == 7
    module = sys.modules["library_with_a_spare.spare"]
    defer_import("library_with_a_spare.spare")
    assert sys.modules["library_with_a_spare.spare"] is module


def test_protobuf_without_its_part_in_c_decodes_the_kubelets_messages() -> None:
    code = (
        "from google.protobuf.internal import api_implementation;"
        " from dra_agent.kubelet_plugin.proto import dra_v1_pb2 as messages;"
        " request = messages.NodePrepareResourcesRequest(); request.claims.add(namespace='n', name='c', uid='u');"
        " decoded = messages.NodePrepareResourcesRequest.FromString(request.SerializeToString());"
        " print(api_implementation.Type(), decoded.claims[0].uid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    )
    assert done.stdout.split() == ["python", "u"]
