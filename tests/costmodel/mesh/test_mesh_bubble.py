"""No step is shorter than the work of its busiest rank: chunks that hold different kinds of blocks, recomputed in part."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.mesh.detail import stage_rows
from costmodel.mesh.plan import RECOMPUTE, MeshBatch, MeshPlan
from costmodel.mesh.stages import layout_of, recomputed_modules, stack_layouts
from tests.cases import mostly
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

MIXED = {"features": 256, "heads": 8, "kv_heads": 8, "ffn": 512, "vocabulary": 256, "positions": 64, "experts": 4}


@mostly("exact", "seed", range(24))
def test_no_plan_has_less_than_no_bubble(seed: int) -> None:
    """m times what a rank does per micro-batch is the least time of a step."""
    rng = random.Random(seed)
    graph = decoder(blocks=rng.choice([7, 9, 13]), dense_blocks=rng.choice([1, 2, 3, 5]), **MIXED)
    model = make.model_of(graph, rng.choice([24, 48]), make.cluster(rng), make.assumptions(rng))
    shape = make.shape_of(model)
    plans = [make.random_plan(rng, shape) for _ in range(8)]
    plans += [replace(plan, recompute="full", recompute_blocks=1) for plan in plans]
    plans += [make.uneven(rng, plan, shape.num_blocks) for plan in plans if plan.pp * plan.vpp <= shape.num_blocks]
    costs = model.evaluate_plans(plans)
    worst = int(np.argmin(costs.bubble_s / costs.step_time_s))
    assert costs.bubble_s[worst] >= 0.0, plans[worst]


def test_blocks_that_run_again_are_counted_chunk_by_chunk() -> None:
    """3 dense blocks and 4 mixtures; chunks of 2, 2, 1, 2 on 2 ranks, one block of each run again.

    Rank 0 has chunks of two dense blocks and of one mixture: 1 of 2 dense blocks and the mixture. Rank 1 has a dense block with a mixture,
    and two mixtures: a half of each of the first chunk, and 1 of 2.
    """
    model = make.model_of(decoder(blocks=7, dense_blocks=3, **MIXED), 8, make.ideal_cluster())
    layouts = stack_layouts([layout_of(model.modules, (2, 2, 1, 2), 2)])
    full, one = np.array([RECOMPUTE.index("full")]), np.ones(1, dtype=np.int64)
    again = recomputed_modules(layouts, full, one)[0][:, 1:-1]
    assert layouts.rank_first[0].tolist() == [0, 1]
    assert again.tolist() == [[1.0, 1.0], [0.5, 1.5]]


def test_memory_of_recomputed_chunks_adds_up_block_by_block() -> None:
    """The same plan: what a rank keeps is what its chunks keep, each by itself."""
    graph = decoder(blocks=7, dense_blocks=3, **MIXED)
    model = make.model_of(graph, 8, make.ideal_cluster())
    plan = MeshPlan(pp=2, vpp=2, schedule="interleaved", num_micro_batches=8, stage_blocks=(2, 2, 1, 2))
    some = replace(plan, recompute="full", recompute_blocks=1)
    table = model.rows(MeshBatch.from_plans([some]))
    kept = table.saved_bytes[0] - table.input_bytes[0]
    plain, again = (stage_rows(model, one) for one in (plan, some))
    alive = (2 * (2 - 0 - 1) + 2 + 1) / 2, (2 * (2 - 1 - 1) + 2 + 1) / 2
    for rank, (dense, mixtures) in enumerate(((1.0, 1.0), (0.5, 1.5))):
        freed = plain[rank].activation_bytes - again[rank].activation_bytes
        assert freed == pytest.approx(alive[rank] * (dense * kept[1] + mixtures * kept[2]), rel=1e-12)
