"""The simplest of the serving plans that are nearly as good as the best: what is harder to run has to pay for it.

Wishes are granted in their order, the most important first: one is granted if a plan that also has all granted before it is nearly as good
as the best. So each plan has a number whose highest bit is the first wish that it lacks, and the plan with the least number of those that
are nearly as good is the simplest; of equal ones the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.serving.plan import ServingBatch
from strategies.mesh.settings import POWERS

# Numbers of sequences that people tell engines: powers of two, and multiples of this.
USUAL_STEP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Something that makes a plan simpler to run.

    Attributes
    ----------
    name : str
        In the published JSON.
    test : function of (ServingBatch, devices of a node)
        Which plans have it.
    """

    name: str
    test: Callable[[ServingBatch, int], BoolArray]


def is_usual(sequences: IntArray) -> BoolArray:
    """Whether numbers of sequences are usual ones.

    >>> is_usual(np.array([1, 16, 24, 96, 447])).tolist()
    [True, True, False, True, False]
    """
    return np.asarray((sequences & (sequences - 1) == 0) | (sequences % USUAL_STEP == 0))


def usual_below(sequences: int) -> int:
    """The largest usual number that is not larger.

    >>> usual_below(447), usual_below(24), usual_below(1)
    (416, 16, 1)
    """
    return max(sequences // USUAL_STEP * USUAL_STEP, 1 << (sequences.bit_length() - 1) if sequences < USUAL_STEP else 0)


def _in_whole_nodes(plans: ServingBatch, node: int) -> BoolArray:
    sizes = (plans.tp * plans.pp * plans.sharing, plans.prefill_tp * plans.prefill_pp)
    return np.asarray(
        np.logical_and.reduce(
            [(node % np.minimum(size, node) == 0) & (size % np.minimum(size, node) == 0) for size in sizes]
        )
    )


def _none(*names: str) -> Callable[[ServingBatch, int], BoolArray]:
    """A degree is 1 in both pools."""
    return lambda plans, _: np.asarray(np.logical_and.reduce([getattr(plans, name) == 1 for name in names]))


# First what needs other software or a second kind of worker, then what few people have run, then dimensions, then odd numbers.
WISHES: tuple[Wish, ...] = (
    Wish(name="one_pool", test=lambda plans, _: ~plans.is_apart),
    Wish(name="no_drafts", test=lambda plans, _: np.asarray(plans.draft_tokens == 0)),
    Wish(
        name="power_of_two_degrees",
        test=lambda plans, _: np.asarray(
            np.logical_and.reduce(
                [np.isin(getattr(plans, name), POWERS) for name in ("tp", "pp", "prefill_tp", "prefill_pp")]
            )
        ),
    ),
    Wish(name="whole_nodes", test=_in_whole_nodes),
    Wish(name="no_pipeline", test=_none("pp", "prefill_pp")),
    Wish(name="no_expert_tensor_parallelism", test=_none("etp", "prefill_etp")),
    Wish(name="no_expert_parallelism", test=_none("ep", "prefill_ep")),
    Wish(name="no_tensor_parallelism", test=_none("tp", "prefill_tp")),
    Wish(name="usual_sequences", test=lambda plans, _: is_usual(plans.max_batch)),
)

# What a plan to run may have that the best plan lacks.
FORGONE: tuple[str, ...] = tuple(wish.name for wish in WISHES)


def lacks(plans: ServingBatch, node: int) -> IntArray:
    """Which wishes plans lack, as numbers: the first wish is the highest bit."""
    found = np.zeros(len(plans), dtype=np.int64)
    for wish in WISHES:
        found = 2 * found + ~wish.test(plans, node)
    return found
