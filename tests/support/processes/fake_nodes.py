"""Ray's fake node provider, each node with a temporary folder of its own, as machines have.

Ray 2.60 unpacks what a job ships anew for each node that comes, and first removes what is there: nodes that
share a folder, as Ray's own fake ones do, take it away under one another's workers."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

from ray._private import parameter
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class NodesWithFolders(FakeMultiNodeProvider):  # type: ignore[misc]
    """`temp_dir` in the provider's configuration: where the nodes' folders lie."""

    def _create_node_with_resources_and_labels(self, *arguments: Any) -> None:
        with self.lock:  # reentrant; Ray's own method takes it too
            folder = f"{self.provider_config['temp_dir']}/grown{self._next_node_id}"
            with patch.object(parameter, "RayParams", partial(parameter.RayParams, temp_dir=folder)):
                super()._create_node_with_resources_and_labels(*arguments)
