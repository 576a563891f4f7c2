"""The owner of every slice: the Node object, so that slices vanish with it."""

from __future__ import annotations

from typing import Any

from dra_agent.errors import RetryableError
from dra_agent.kube_client import NODES, ApiClient, NotFoundError, UnavailableError


class NodeOwnerReference:
    """Knows the Node's uid, which is read once, and again after somebody deleted slices: it may be another Node."""

    def __init__(self, api: ApiClient, node: str) -> None:
        self._api = api
        self._node = node
        self._reference: dict[str, Any] | None = None

    def invalidate(self) -> None:
        """Read the Node again before the next slice is written."""
        self._reference = None

    async def reference(self) -> dict[str, Any]:
        """Give the ownerReference. Raises the errors of `cluster.errors`; RetryableError where there is no Node yet."""
        if self._reference is None:
            try:
                node = await self._api.get(NODES, self._node)
            except NotFoundError as error:
                raise RetryableError(
                    f"there is no Node {self._node!r} (yet)",
                    where=f"API server {self._api.address}",
                    hint="the kubelet makes it; if it has another name, give --node-name",
                ) from error
            uid = (node.get("metadata") or {}).get("uid")
            if not isinstance(uid, str):
                raise UnavailableError("the answer is no Node", where=f"API server {self._api.address}")
            # As Kubernetes' helper writes it: controller, no blockOwnerDeletion.
            self._reference = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node,
                "uid": uid,
                "controller": True,
            }
        return self._reference
