"""Pipeline schedules: what each is, and the instructions that it gives every rank.

A schedule is declared here, and its time in closed form stands in `costmodel.mesh.schedule`. The instructions are run event by event
(`costmodel.timeline`), which checks that time.

Orders: GPipe (Huang et al. 2019, arXiv:1811.06965, figure 2c), 1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv:2104.04473, figure 4
top), its interleaved form (same paper, figure 4 bottom; warm-up counts of Megatron-LM's ``forward_backward_pipelining_with_interleaving``;
groups of other sizes than pp: ``get_schedule_table`` there), ZB-H1 and ZB-H2 (Qi et al. 2024, arXiv:2401.10241, figures 2 and 3), ZB-V (the
same, section 6; counts of PyTorch's ``ScheduleZBVZeroBubble``), DualPipeV (DualPipe of DeepSeek-V3, arXiv:2412.19437, section 3.2.1, cut in
half: github.com/deepseek-ai/DualPipe; counts of PyTorch's ``ScheduleDualPipeV``), the interleaved form with forward beside backward passes
(Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py), the interleaved form of ZB-H1 (PyTorch's
``ScheduleInterleavedZeroBubble``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from costmodel.arrays import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Instruction:
    """One piece of work of a rank."""

    # "F" forward, "B" backward (where weight gradients are delayed: of the input only), "W" gradient of the weights
    kind: str
    chunk: int
    micro_batch: int
    # Whether it runs together with the next one: both begin when both can, and give their results when both are done.
    joined: bool = field(default=False, compare=False)


Order = Callable[..., list[Instruction]]
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
    about : str
        What it is, and who describes it.
    bubble : str
        Time that a rank waits in a step of many micro-batches and equal stages: F, B are the passes of one micro-batch through all layers
        of a rank, W the part of B for the gradients of weights. Where the order is made for F = B - W = W, of such passes.
    kept : str
        Most micro-batches whose activations a rank keeps, of all its layers, where there are many in groups of pp.
    order : function of rank, pp, vpp and micro-batches, and of the size of their groups where they come in groups
        The instructions of a rank.
    in_flight : function of micro-batches, pp, vpp and rank, arrays
        Most activations of one chunk and micro-batch that a rank holds at once, over all its chunks. More micro-batches are not
        fewer than those of as many whole groups of pp as there are, and along the ranks it only rises or only falls.
    vpp : int
        Chunks (virtual stages) of a rank; 0: any number from 2.
    in_groups : bool
        Micro-batches go through the chunks of a rank in groups (`group_size`).
    delays_weights : bool
        Gradients of weights run apart from those of inputs, which the stage before waits for, and later.
    trails : int
        Rank r runs min(r + 1, m) weight gradients after its last input gradient, all of its first chunk, as in ZB-H1 (1); of more
        micro-batches than ranks, min(r, m - pp) more as in ZB-H2 (2). What is known of the end of ranks follows. 0: nothing is known.
    keeps_all : bool
        All forward passes come before the first backward pass.
    overlaps : bool
        Forward passes run beside backward passes, so that tokens of one travel to the experts and back while the other computes.
    fewest : int
        It runs with ``fewest pp`` micro-batches or more.
    on_request : bool
        It is searched only where a framework names it among its schedules, or the user does.
    meant_by : mapping
        Other words for it, or for what it can stand in for -> what to know then.
    rank_of_chunk : function of chunks, an array, and pp
        Which rank runs a chunk of the network, by default one after the other. The first pp chunks are on the ranks in their order, and all
        ranks have as many chunks.
    """

    name: str
    order: Order
    in_flight: InFlight
    about: str = ""
    bubble: str = ""
    kept: str = ""
    vpp: int = 1
    in_groups: bool = False
    delays_weights: bool = False
    trails: int = 0
    keeps_all: bool = False
    overlaps: bool = False
    fewest: int = 0
    on_request: bool = False
    meant_by: Mapping[str, str] = field(default_factory=dict)
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


def group_size(m: IntArray | int, pp: IntArray | int) -> IntArray:
    """Micro-batches that go through a chunk before a rank turns to its next one, by the number of micro-batches and of ranks.

    A group of fewer than pp micro-batches would leave ranks waiting for each other, so Megatron-LM refuses it, the last group included
    (``forward_backward_pipelining_with_interleaving``). Larger groups keep more in flight. So the size is the least of pp or more that
    leaves no such rest: pp where it divides the micro-batches. PyTorch, which has equal groups only, chooses the same
    (``ScheduleInterleaved1F1B``).

    >>> group_size(np.array([8, 9, 10, 11, 1025]), np.array([4, 4, 4, 4, 64])).tolist()
    [4, 5, 5, 6, 79]
    """
    size, m = np.maximum(pp, 1), np.asarray(m)
    while True:
        rest = m % size
        small = (rest > 0) & (rest < pp) & (m >= pp)
        if not np.any(small):
            return np.asarray(size)
        # A group takes one more of the rest with each micro-batch that it grows by.
        size = size + np.where(small, -(-rest // np.maximum(m // size, 1)), 0)


def _interleaved(
    rank: int, pp: int, vpp: int, m: int, group: int, *, each: int = 2, joined: bool = False
) -> list[Instruction]:
    """Groups of micro-batches go through the rank's first chunk, then its second, ...; backwards from the last chunk.

    ``each`` forward passes come first for every rank that follows. They may run together with the backward pass that comes next; one more
    of them comes first then.
    """
    forwards, backwards = [], []
    for first in range(0, m, group):
        some = range(first, min(first + group, m))
        for v in range(vpp):
            forwards += [Instruction("F", v * pp + rank, i) for i in some]
            backwards += [Instruction("B", (vpp - 1 - v) * pp + rank, i) for i in some]
    warm_up = each * (pp - 1 - rank) + (vpp - 1) * group + joined
    if joined:
        forwards[warm_up:] = [replace(item, joined=True) for item in forwards[warm_up:]]
    return _alternate(forwards, backwards, warm_up)


def _lagging(order: list[Instruction], lag: int) -> list[Instruction]:
    """Weight gradients in the order of the input gradients, so many behind them."""
    result: list[Instruction] = []
    backwards = [item for item in order if item.kind == "B"]
    weights = iter([Instruction("W", item.chunk, item.micro_batch) for item in backwards])
    done = 0
    for item in order:
        result.append(item)
        done += item.kind == "B"
        if item.kind == "B" and done > lag:
            result.append(next(weights))
    return result + list(weights)


def _zero_bubble(rank: int, pp: int, _vpp: int, m: int) -> list[Instruction]:
    """1F1B whose weight gradients lag `rank` micro-batches behind, so that every rank keeps pp micro-batches."""
    return _lagging(_one_f_one_b(rank, pp, 1, m), rank)


def _zb_h2(rank: int, pp: int, _vpp: int, m: int) -> list[Instruction]:
    """Twice the warm-up and twice the lag: every rank keeps 2 pp - 1 micro-batches, and none waits if F, B and W take equally long.

    The paper has it for many micro-batches. Of fewer, as many go ahead of ZB-H1 as there are beyond pp: of pp or less it is ZB-H1, and
    no order of more warm-up or more lag was faster on equal stages.
    """
    forwards, backwards = ([Instruction(kind, rank, i) for i in range(m)] for kind in "FB")
    after, more = pp - 1 - rank, max(m - pp, 0)
    return _lagging(_alternate(forwards, backwards, after + min(after, more)), rank + min(rank, more))


def _interleaved_zb(rank: int, pp: int, vpp: int, m: int, group: int) -> list[Instruction]:
    """The interleaved form with the warm-up of 1F1B, whose weight gradients lag `rank` micro-batches behind as in ZB-H1."""
    return _lagging(_interleaved(rank, pp, vpp, m, group, each=1), rank)


def _in_v(chunk: IntArray, pp: int) -> IntArray:
    """Down the ranks and back."""
    return np.minimum(chunk, 2 * pp - 1 - chunk)


class _Writer:
    """Writes the instructions of a rank with two chunks in a V, the next micro-batch of every kind and chunk."""

    def __init__(self, rank: int, pp: int, m: int) -> None:
        self.order: list[Instruction] = []
        self.chunks = {"0": rank, "1": 2 * pp - 1 - rank}
        self.most, self.done = m, Counter[str]()
        self.late: list[str] = []  # input gradients whose weight gradients are to come

    def add(self, *items: str) -> None:
        """``F0``: a forward pass of the first chunk. Items with a plus at the end run together with the next one."""
        for item in items:
            name = item[:2]
            if self.done[name] < self.most:
                self.order.append(
                    Instruction(name[0], self.chunks[name[1]], self.done[name], joined=item.endswith("+"))
                )
            self.done[name] += 1

    def input_only(self, chunk: str) -> None:
        """A backward pass without its weight gradients."""
        self.add(f"B{chunk}")
        self.late.append(f"W{chunk}")

    def weights(self) -> None:
        """The weight gradients that wait longest."""
        self.add(*self.late[:1])
        del self.late[:1]


def _zb_v(rank: int, pp: int, _vpp: int, m: int) -> list[Instruction]:
    """The second chunk begins its backward passes as soon as it can; every rank keeps what pp whole micro-batches need.

    Orders of fewer micro-batches than fill the pipeline leave out the others.
    """
    write, enough = _Writer(rank, pp, m), max(m, 2 * pp - 1)
    write.add(*["F0"] * (2 * (pp - rank) - 1), *["F1", "F0"] * rank, *["F1", "B1", "W1"] * (pp - rank))
    while write.done["F1"] < enough:
        write.add(*["F0"] * (write.done["F0"] < enough), "B0", "W0", "F1", "B1", "W1")
    write.add(*["B0", "B1"] * rank, *["B0", "W0"] * (pp - rank))
    for weights in ("W1", "W0"):
        write.add(*[weights] * (enough - write.done[weights]))
    return write.order


def _dualpipe_v(rank: int, pp: int, _vpp: int, m: int) -> list[Instruction]:
    """In the middle of a step, forward passes of one chunk run together with backward passes of the other."""
    write, after = _Writer(rank, pp, m), pp - 1 - rank
    write.add(*["F0"] * (2 * after), *["F0", "F1"] * (rank + 1))
    for _ in range(after):
        write.input_only("1")
        write.weights()
        write.add("F1")
    for n in range(m - 2 * pp + rank + 1):
        write.add("F0" if n == 0 and after == 0 else "F0+", "B1+", "W1", "F1+", "B0+", "W0")
    write.add(*["B1+", "W1", "F1+", "B0+", "W0"] * after)
    # Whole backward passes of both chunks in turn, from the middle on without weight gradients.
    turns = ["1", "0"] * (rank + 1) + ["0"] * after
    whole = 2 * ((rank + 1) // 2) + (rank % 2 == 0)
    for n, chunk in enumerate(turns):
        if n >= 2 * (rank + 1):
            write.weights()
        if n < whole:
            write.add(f"B{chunk}+", f"W{chunk}")
        else:
            write.input_only(chunk)
    while write.late:
        write.weights()
    return write.order


def _in_warm_up(m: IntArray, pp: IntArray, vpp: IntArray, rank: IntArray, joined: int = 0) -> IntArray:
    """One more than the forwards of Megatron-LM's warm-up."""
    return np.asarray(np.minimum(m * vpp, 2 * (pp - rank - 1) + (vpp - 1) * group_size(m, pp) + 1 + joined))


PIPELINE_SCHEDULES: tuple[Schedule, ...] = (
    Schedule(
        name="gpipe",
        about="all forward passes before the first backward pass (GPipe, arXiv:1811.06965)",
        bubble="(pp - 1) (F + B)",
        kept="m",
        order=_gpipe,
        in_flight=lambda m, pp, vpp, rank: m * vpp,  # noqa: ARG005 - Huang et al. 2019, arXiv:1811.06965
        keeps_all=True,
    ),
    Schedule(
        name="1f1b",
        about="one forward and one backward pass in turn (PipeDream-Flush, arXiv:2104.04473)",
        bubble="(pp - 1) (F + B)",
        kept="pp",
        order=_one_f_one_b,
        # PipeDream-Flush, arXiv:2104.04473, section 2.2.1.
        in_flight=lambda m, pp, vpp, rank: np.minimum(m, pp - rank),  # noqa: ARG005
    ),
    Schedule(
        name="interleaved",
        about="1F1B with several chunks of layers per rank (arXiv:2104.04473, section 2.2)",
        bubble="(pp - 1) (F + B) / vpp",
        kept="pp + (pp - 1) / vpp",
        order=_interleaved,
        in_flight=_in_warm_up,
        vpp=0,
        in_groups=True,
        fewest=1,
    ),
    Schedule(
        name="zero_bubble",
        about="ZB-H1: 1F1B whose gradients of weights fill its bubble, at no more memory (arXiv:2401.10241)",
        bubble="(pp - 1) (F + B - 2 W)",
        kept="pp",
        order=_zero_bubble,
        # Weight gradients lag so that all ranks keep as many micro-batches as the first, which holds as many as under 1F1B
        # (arXiv:2401.10241, section 2.1). Rank i holds min(m, pp - i) whole ones; the others have had their input gradient (section 2.3).
        in_flight=lambda m, pp, vpp, rank: np.minimum(m, pp),  # noqa: ARG005
        delays_weights=True,
        trails=1,
        meant_by={"zb_h1": "it is ZB-H1"},
    ),
    Schedule(
        name="zb_h2",
        about="ZB-H2: the same with more forward passes ahead (arXiv:2401.10241)",
        bubble="(pp - 1) F",
        kept="2 pp - 1",
        order=_zb_h2,
        in_flight=lambda m, pp, vpp, rank: np.minimum(m, 2 * pp - 1),  # noqa: ARG005 - the same, section 2.3
        delays_weights=True,
        trails=2,
        on_request=True,
    ),
    Schedule(
        name="zb_v",
        about="ZB-V: two chunks per rank in a V, gradients of weights apart (arXiv:2401.10241, section 6)",
        bubble="(pp - 1) F / 2",
        kept="pp",
        order=_zb_v,
        in_flight=lambda m, pp, vpp, rank: np.minimum(np.minimum(2 * m, 2 * pp), m + rank + 1),  # noqa: ARG005
        vpp=2,
        delays_weights=True,
        on_request=True,
        rank_of_chunk=_in_v,
    ),
    Schedule(
        name="dualpipe_v",
        about="DualPipeV: two chunks per rank in a V, forward beside backward passes, which hides experts' tokens (arXiv:2412.19437)",
        bubble="(pp - 1) (F + 2 B - 3 W) / 2",
        kept="pp + 1 / 2",
        order=_dualpipe_v,
        in_flight=lambda m, pp, vpp, rank: 2 * pp + 1 + 0 * rank,  # noqa: ARG005
        vpp=2,
        delays_weights=True,
        overlaps=True,
        fewest=2,
        on_request=True,
        # github.com/deepseek-ai/DualPipe, README: ranks s and pp - 1 - s hold the same two stages.
        meant_by={
            "dualpipe": "DualPipe over pp ranks is two replicas of it over pp / 2 ranks each, with the same weights, activations and bubble"
        },
        rank_of_chunk=_in_v,
    ),
    Schedule(
        name="combined_1f1b",
        about="interleaved, forward beside backward passes, which hides experts' tokens (Megatron-LM's overlap of expert communication)",
        bubble="(pp - 1) (F + B) / vpp",
        kept="pp + pp / vpp",
        order=partial(_interleaved, joined=True),
        in_flight=partial(_in_warm_up, joined=1),
        vpp=0,
        in_groups=True,
        fewest=1,
        overlaps=True,
        on_request=True,
    ),
    Schedule(
        name="interleaved_zb",
        about="interleaved with gradients of weights apart, as in ZB-H1 (PyTorch's ScheduleInterleavedZeroBubble)",
        bubble="(pp - 1) (F + B - 2 W) / vpp",
        kept="pp",
        order=_interleaved_zb,
        # The forwards of the warm-up and the gradients that lag make up for each other, as in ZB-H1.
        in_flight=lambda m, pp, vpp, rank: np.minimum(m * vpp, (vpp - 1) * group_size(m, pp) + pp) + 0 * rank,
        vpp=0,
        in_groups=True,
        delays_weights=True,
        trails=1,
        fewest=1,
        on_request=True,
    ),
)


SCHEDULES: tuple[str, ...] = tuple(schedule.name for schedule in PIPELINE_SCHEDULES)
ONE_F_ONE_B = SCHEDULES.index("1f1b")
# Words that are no names of schedules -> the one that is meant, and what to know.
MEANT: Mapping[str, str] = {
    word: f"'{schedule.name}'? ({hint})" for schedule in PIPELINE_SCHEDULES for word, hint in schedule.meant_by.items()
}
# Those of plans for no framework in particular.
USUAL_SCHEDULES: tuple[str, ...] = tuple(schedule.name for schedule in PIPELINE_SCHEDULES if not schedule.on_request)


def _which(fact: str) -> BoolArray:
    return np.array([getattr(schedule, fact) for schedule in PIPELINE_SCHEDULES])


# Facts by the position of a schedule: index them with positions.
IS_CHUNKED, IN_GROUPS, DELAYS_WEIGHTS, KEEPS_ALL, OVERLAPS = (
    _which(fact) for fact in ("is_chunked", "in_groups", "delays_weights", "keeps_all", "overlaps")
)
TRAILS: IntArray = np.array([schedule.trails for schedule in PIPELINE_SCHEDULES])
FEWEST: IntArray = np.array([schedule.fewest for schedule in PIPELINE_SCHEDULES])
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


def instruction_orders(
    schedule: str, pp: int, vpp: int, num_micro_batches: int, group: int = 0
) -> list[list[Instruction]]:
    """The instructions of every rank, in the order in which it runs them.

    Parameters
    ----------
    schedule : str
        A name of `PIPELINE_SCHEDULES`.
    pp, vpp, num_micro_batches : int
    group : int
        Micro-batches of a group, where they come in groups; 0: `group_size`.

    Returns
    -------
    list of lists of Instruction

    Examples
    --------
    >>> [f"{item.kind}{item.micro_batch}" for item in instruction_orders("1f1b", 2, 1, 3)[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    known = schedule_of(schedule)
    groups = (group or int(group_size(num_micro_batches, pp)),) if known.in_groups else ()
    return [known.order(rank, pp, vpp, num_micro_batches, *groups) for rank in range(pp)]


def together(order: list[Instruction]) -> list[tuple[Instruction, ...]]:
    """Instructions of a rank that run together, in its order.

    >>> [len(items) for items in together(instruction_orders("dualpipe_v", 1, 2, 2)[0])]
    [1, 1, 1, 2, 3, 2, 1, 1]
    """
    ends = [n + 1 for n, item in enumerate(order) if not item.joined]
    return [tuple(order[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
