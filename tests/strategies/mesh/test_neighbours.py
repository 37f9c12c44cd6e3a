"""Nodes near good ones: those of the space, near in one respect, and no others."""

from __future__ import annotations

import numpy as np

from costmodel.mesh.model import MeshModel
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from strategies.mesh.space import NODE, Columns, MeshSpace, neighbours
from tests.cases import mostly
from tests.strategies.mesh.brute_force import all_plans
from tests.strategies.mesh.networks import decoder, random_case, two_level_cluster, workload_of

_RESPECTS = (
    ("pp",),
    ("dp", "micro_batch", "num_micro_batches"),
    ("ep", "etp"),
    ("tp", "sequence_parallel", "cp", "cp_kind"),
)


def _keys(columns: Columns) -> list[tuple[int, ...]]:
    return list(zip(*(columns[name].tolist() for name in NODE), strict=True))


def _nodes(space: MeshSpace) -> set[tuple[int, ...]]:
    return {key for piece in space.nodes() for key in _keys(piece)}


@mostly("exact", "seed", range(12))
def test_neighbours_are_the_nodes_of_the_space_that_differ_in_one_respect(seed: int) -> None:
    if seed % 2:
        cluster = two_level_cluster(per_node=2)
        model = MeshModel.build(workload_of(decoder(blocks=3, experts=4), cluster, 8), cluster)
    else:
        model = MeshModel.build(*random_case(seed)[:2])
    restriction = MeshRestriction(degrees={"tp": Bounds(high=2)}) if seed % 3 == 0 else MeshRestriction()
    space = MeshSpace.of(model, MeshSettings(max_workers=4, capacity_bytes=1e15, restriction=restriction))
    every = _nodes(space)
    plans = all_plans(model, 4)
    plans = plans.take(np.flatnonzero(plans.tp <= (2 if seed % 3 == 0 else 4)))
    one = plans.take(np.random.default_rng(seed).integers(0, len(plans), 1))
    (own,) = _keys({name: getattr(one, name) for name in NODE})
    found = _keys(neighbours(space, one))
    assert len(found) == len(set(found))
    assert own in found
    assert set(found) <= every
    for respect in _RESPECTS:
        fixed = [n for n, name in enumerate(NODE) if name not in respect]
        near = {key for key in every if all(key[n] == own[n] for n in fixed)}
        assert near <= set(found), respect


def test_ranks_inside_a_layer_are_made_up_for_by_replicas() -> None:
    cluster = two_level_cluster(per_node=4)
    model = MeshModel.build(workload_of(decoder(blocks=4), cluster, 8), cluster)
    space = MeshSpace.of(model, MeshSettings(max_workers=8, capacity_bytes=1e15))
    plans = all_plans(model, 4)
    chosen = (
        (plans.tp == 1) & (plans.cp == 1) & (plans.dp == 4) & (plans.micro_batch == 1) & (plans.num_micro_batches == 2)
    )
    nodes = neighbours(space, plans.take(np.flatnonzero(chosen)[:1]))
    made_up = {
        (int(dp), int(size), int(count))
        for tp, cp, dp, size, count in zip(
            *(nodes[name] for name in ("tp", "cp", "dp", "micro_batch", "num_micro_batches")), strict=True
        )
        if (tp, cp) == (2, 1)
    }
    assert made_up == {(4, 1, 2), (2, 2, 2), (2, 1, 4)}
