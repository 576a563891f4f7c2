"""Imports of libraries that the agent does not need: the module is imported when a name in it is first used.

A library may import a part of itself that its user never calls, such as a second implementation. The part costs memory
of every node.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

_replacing = threading.Lock()


def defer_import(name: str) -> None:
    """Have the submodule `name` imported at its first use; no effect if it is imported already.

    To be called before the library is imported. The library's `from package import module` gets an object that imports
    the module for its first attribute, and returns the module's attributes. Errors of the import are raised then.
    """
    with _replacing:
        if name not in sys.modules:
            sys.modules[name] = _DeferredModule(name)


class _DeferredModule(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        with _replacing:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        # Of several threads one imports it, and the others wait for it.
        return getattr(importlib.import_module(self.__name__), attribute)
