"""Questions about several groups of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from planner.core.errors import UsageError
from planner.question.choose import Asked, Kind

if TYPE_CHECKING:
    from planner.schema.plan import PlanDocument


class MixedKind(Kind):
    """Clusters of several groups of devices, which have a space of their own."""

    def applies(self, asked: Asked) -> bool:
        if asked.cluster is None or len(asked.cluster.groups) == 1:
            return False
        from planner.spaces.mixed.options import check_mixed  # other questions do without

        check_mixed(asked, asked.cluster)
        return True

    def with_batch(self, document: PlanDocument, batch: int) -> PlanDocument:
        if batch != document.global_batch:
            raise UsageError("--batch: the plan divides its own batch among its pipelines; search again at another one")
        return document

    def other_question(self, cluster: Cluster) -> str:
        return f"the plan is for several groups of devices, and cluster '{cluster.name}' has one; name one with groups by --cluster"

    def without_rate(self, device: Device, cluster: Cluster) -> str:
        return f"no device of cluster '{cluster.name}' has a"
