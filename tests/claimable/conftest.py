from inventory.conftest import host, write

__all__ = ["host", "write"]
