"""Which questions can be asked about a cluster of several kinds of devices: an option that would be ignored is an error, never silence."""

from __future__ import annotations

from costmodel.hardware.cluster import Cluster
from costmodel.network.graph import Graph
from planner.core.errors import UsageError
from planner.core.request import Request

__all__ = ["check_mixed", "lead_device"]


def check_mixed(
    request: Request, graph: Graph, cluster: Cluster, *, is_foldable: bool, of_layers: list[str], of_mesh: list[str]
) -> None:
    """Refuse what plans over several kinds of devices do not know.

    Parameters
    ----------
    request : Request
    graph : Graph
    cluster : Cluster
        With several groups.
    is_foldable : bool
        Whether the network has repeated blocks with attention or experts.
    of_layers, of_mesh : list of str
        Options given that only a split per layer, or only a mesh of equal devices knows.

    Raises
    ------
    UsageError
        Every option that cannot be used, or a network that cannot be cut into stages.
    """
    kinds = ", ".join(dict.fromkeys(group.device.name for group in cluster.groups))
    where = f"cluster '{cluster.name}' has several groups of devices ({kinds})"
    if request.mode != "training":
        raise UsageError(f"--mode {request.mode}: {where}, which are planned together for training only")
    if request.space == "layers" or of_layers:
        asked = of_layers[0] if of_layers else "a split per layer (--space layers)"
        raise UsageError(f"{asked}: {where}; plans with a split per layer need devices of one kind")
    if not is_foldable:
        raise UsageError(
            f"network '{graph.name}' has no repeated blocks with attention or experts to divide into stages, and {where}; "
            "name a cluster of one kind of device"
        )
    refused = _outside(request) if of_mesh or request.micro_batches is not None else []
    if request.space == "mesh":
        refused.append(f"--space mesh: {where}; a mesh has one kind of device")
    if request.seed:
        refused.append(
            f"--seed {request.seed}: nothing is random in the search over several groups of devices; leave it out"
        )
    if refused:
        raise UsageError("\n".join(dict.fromkeys(refused)))


def _outside(request: Request) -> list[str]:
    from planner.spaces.mixed.fixed import outside_the_space  # other questions do without

    return outside_the_space(request)


def lead_device(cluster: Cluster, wanted: str | None) -> int:
    """The group whose number format a job has unless it is told: the fastest, among those that have the wanted one.

    Returns
    -------
    int
        Position of the group; the first of all where none has the format.
    """

    def speed(position: int) -> float:
        rates = cluster.groups[position].device.peak_flop_per_s
        return rates.get(wanted, 0.0) if wanted is not None else max(rates.values())

    return max(range(len(cluster.groups)), key=lambda position: (speed(position), -position))
