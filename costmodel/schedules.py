"""Pipeline schedules: what each is, and the instructions that it gives every rank.

A schedule is declared here, and its time in closed form stands in `costmodel.mesh.schedule`. The instructions are run event by event
(`costmodel.timeline`), which checks that time.

Orders: GPipe (Huang et al. 2019, arXiv:1811.06965, figure 2c), 1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv:2104.04473,
figure 4 top), its interleaved form (same paper, figure 4 bottom; warm-up counts of Megatron-LM's
``forward_backward_pipelining_with_interleaving``), ZB-H1 (Qi et al. 2024, arXiv:2401.10241, figure 2 top).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, IntArray

__all__ = [
    "DELAYS_WEIGHTS",
    "IN_GROUPS",
    "IS_CHUNKED",
    "KEEPS_ALL",
    "PIPELINE_SCHEDULES",
    "PLACED_AS",
    "SCHEDULES",
    "TRAILS",
    "VPP",
    "Instruction",
    "Schedule",
    "chunks_of_ranks",
    "instruction_orders",
    "ranks_of_chunks",
    "schedule_of",
]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One piece of work of a rank."""

    kind: str  # "F" forward, "B" backward (under zero_bubble: input gradient only), "W" weight gradient
    chunk: int
    micro_batch: int


Order = Callable[[int, int, int, int], list[Instruction]]
InFlight = Callable[[IntArray, IntArray, IntArray, IntArray], IntArray]
Placement = Callable[[IntArray, int], IntArray]


def _in_turn(chunk: IntArray, pp: int) -> IntArray:
    return chunk % pp


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule.

    Attributes
    ----------
    name : str
    order : function of rank, pp, vpp and micro-batches
        The instructions of a rank.
    in_flight : function of micro-batches, pp, vpp and rank, arrays
        Most activations of one chunk and micro-batch that a rank holds at once, over all its chunks. More micro-batches are not
        fewer, and along the ranks it only rises or only falls.
    vpp : int
        Chunks (virtual stages) of a rank; 0: any number from 2.
    in_groups : bool
        Micro-batches come in whole groups of pp.
    delays_weights : bool
        Gradients of weights run apart from those of inputs, which the stage before waits for, and later.
    trails : bool
        Rank r runs min(r + 1, m) weight gradients after its last input gradient, as in ZB-H1: what is known of the end of ranks follows.
    keeps_all : bool
        All forward passes come before the first backward pass.
    rank_of_chunk : function of chunks, an array, and pp
        Which rank runs a chunk of the network, by default one after the other. The first pp chunks are on the ranks in their order, and all
        ranks have as many chunks.
    """

    name: str
    order: Order
    in_flight: InFlight
    vpp: int = 1
    in_groups: bool = False
    delays_weights: bool = False
    trails: bool = False
    keeps_all: bool = False
    rank_of_chunk: Placement = _in_turn

    @property
    def is_chunked(self) -> bool:
        """Whether ranks have several chunks."""
        return self.vpp != 1


def _gpipe(rank: int, _pp: int, _vpp: int, m: int) -> list[Instruction]:
    """All forwards, then all backwards, the last micro-batch first (its activations are the newest)."""
    forwards = [Instruction("F", rank, i) for i in range(m)]
    return forwards + [Instruction("B", rank, i) for i in reversed(range(m))]


def _alternate(forwards: list[Instruction], backwards: list[Instruction], warm_up: int) -> list[Instruction]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards that are left."""
    order = forwards[:warm_up]
    for j, backward in enumerate(backwards):
        order += forwards[warm_up + j : warm_up + j + 1]
        order.append(backward)
    return order


def _one_f_one_b(rank: int, pp: int, _vpp: int, m: int) -> list[Instruction]:
    forwards = [Instruction("F", rank, i) for i in range(m)]
    backwards = [Instruction("B", rank, i) for i in range(m)]
    return _alternate(forwards, backwards, pp - 1 - rank)


def _interleaved(rank: int, pp: int, vpp: int, m: int) -> list[Instruction]:
    """Groups of pp micro-batches go through the rank's first chunk, then its second, ...; backwards from the last chunk."""
    forwards, backwards = [], []
    for group in range(0, m, pp):
        for v in range(vpp):
            forwards += [Instruction("F", v * pp + rank, i) for i in range(group, group + pp)]
            backwards += [Instruction("B", (vpp - 1 - v) * pp + rank, i) for i in range(group, group + pp)]
    return _alternate(forwards, backwards, 2 * (pp - 1 - rank) + (vpp - 1) * pp)


def _zero_bubble(rank: int, pp: int, _vpp: int, m: int) -> list[Instruction]:
    """1F1B whose weight gradients lag `rank` micro-batches behind, so that every rank keeps pp micro-batches."""
    order: list[Instruction] = []
    for item in _one_f_one_b(rank, pp, 1, m):
        order.append(item)
        if item.kind == "B" and item.micro_batch >= rank:
            order.append(Instruction("W", rank, item.micro_batch - rank))
    return order + [Instruction("W", rank, i) for i in range(max(0, m - rank), m)]


def _in_warm_up(m: IntArray, pp: IntArray, vpp: IntArray, rank: IntArray) -> IntArray:
    """One more than the forwards of Megatron-LM's warm-up."""
    return np.asarray(np.minimum(m * vpp, 2 * (pp - rank - 1) + (vpp - 1) * pp + 1))


PIPELINE_SCHEDULES: tuple[Schedule, ...] = (
    Schedule(
        name="gpipe",
        order=_gpipe,
        in_flight=lambda m, pp, vpp, rank: m * vpp,  # noqa: ARG005 - Huang et al. 2019, arXiv:1811.06965
        keeps_all=True,
    ),
    Schedule(
        name="1f1b",
        order=_one_f_one_b,
        # PipeDream-Flush, arXiv:2104.04473, section 2.2.1.
        in_flight=lambda m, pp, vpp, rank: np.minimum(m, pp - rank),  # noqa: ARG005
    ),
    Schedule(name="interleaved", order=_interleaved, in_flight=_in_warm_up, vpp=0, in_groups=True),
    Schedule(
        name="zero_bubble",
        order=_zero_bubble,
        # Weight gradients lag so that all ranks keep as many micro-batches as the first, which holds as many as under 1F1B
        # (arXiv:2401.10241, section 2.1). Rank i holds min(m, pp - i) whole ones; the others have had their input gradient (section 2.3).
        in_flight=lambda m, pp, vpp, rank: np.minimum(m, pp),  # noqa: ARG005
        delays_weights=True,
        trails=True,
    ),
)


SCHEDULES: tuple[str, ...] = tuple(schedule.name for schedule in PIPELINE_SCHEDULES)


def _which(fact: str) -> BoolArray:
    return np.array([getattr(schedule, fact) for schedule in PIPELINE_SCHEDULES])


# Facts by the position of a schedule: index them with positions.
IS_CHUNKED, IN_GROUPS, DELAYS_WEIGHTS, TRAILS, KEEPS_ALL = (
    _which(fact) for fact in ("is_chunked", "in_groups", "delays_weights", "trails", "keeps_all")
)
VPP: IntArray = np.array([schedule.vpp for schedule in PIPELINE_SCHEDULES])
_PLACEMENTS = [schedule.rank_of_chunk for schedule in PIPELINE_SCHEDULES]
# The first schedule that puts chunks on the same ranks.
PLACED_AS: IntArray = np.array([_PLACEMENTS.index(placement) for placement in _PLACEMENTS])


def schedule_of(name: str) -> Schedule:
    """Look a schedule up."""
    return PIPELINE_SCHEDULES[SCHEDULES.index(name)]


def ranks_of_chunks(schedule: str, pp: int, vpp: int) -> IntArray:
    """Rank of every chunk, (pp vpp,), in the order of the network.

    >>> ranks_of_chunks("interleaved", 3, 2).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    return schedule_of(schedule).rank_of_chunk(np.arange(pp * vpp), pp)


def chunks_of_ranks(schedule: str, pp: int, vpp: int) -> IntArray:
    """Chunks of every rank, (pp, vpp), in the order of the network.

    >>> chunks_of_ranks("interleaved", 3, 2).tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    return np.argsort(ranks_of_chunks(schedule, pp, vpp), kind="stable").reshape(pp, vpp)


def instruction_orders(schedule: str, pp: int, vpp: int, num_micro_batches: int) -> list[list[Instruction]]:
    """The instructions of every rank, in the order in which it runs them.

    Parameters
    ----------
    schedule : str
        A name of `PIPELINE_SCHEDULES`.
    pp, vpp, num_micro_batches : int

    Returns
    -------
    list of lists of Instruction

    Examples
    --------
    >>> [f"{item.kind}{item.micro_batch}" for item in instruction_orders("1f1b", 2, 1, 3)[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    return [schedule_of(schedule).order(rank, pp, vpp, num_micro_batches) for rank in range(pp)]
