"""From a case to a call of a collective; every process calls it at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.measure.cases import Case
from planner.measure.processes import Processes

__all__ = ["collective_call"]

Call = Callable[[], object]


def collective_call(torch: Any, device: Any, processes: Processes, case: Case) -> Call:
    """Prepare a collective.

    ``bytes`` of a case: of all_reduce, the vector that every rank has; of all_gather, the gathered tensor; of reduce_scatter, the
    tensor before; of all_to_all, what one rank holds; of point_to_point, what is sent (rank 0 sends, rank 1 sends back: half a
    round trip counts).
    """
    operation, elements, ranks = case.text("collective"), case["bytes"] // 4, processes.ranks
    library = torch.distributed
    whole = torch.ones(elements, dtype=torch.float32, device=device)
    if operation == "all_reduce":
        # The values do not matter, but sums over sums would overflow.
        return lambda: library.all_reduce(whole, op=library.ReduceOp.MAX)
    if operation == "point_to_point":
        return _ping_pong(library, whole, processes.rank)
    part = torch.ones(elements // ranks, dtype=torch.float32, device=device)
    if operation == "all_gather":
        return lambda: library.all_gather_into_tensor(whole, part)
    if operation == "reduce_scatter":
        return lambda: library.reduce_scatter_tensor(part, whole, op=library.ReduceOp.MAX)
    assert operation == "all_to_all", operation
    result = torch.empty_like(whole)
    return lambda: library.all_to_all_single(result, whole)


def _ping_pong(library: Any, tensor: Any, rank: int) -> Call:
    def first() -> None:
        library.send(tensor, dst=1)
        library.recv(tensor, src=1)

    def second() -> None:
        library.recv(tensor, src=0)
        library.send(tensor, dst=0)

    return {0: first, 1: second}.get(rank, lambda: None)
