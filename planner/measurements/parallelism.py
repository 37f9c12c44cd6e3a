"""What a row says of its plan and of its time.

The plan: degrees and batches, what replicas share, chunks and schedule of the pipeline, recomputation. What was measured: a time, a
throughput in some unit, or a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from costmodel.framework import recompute_as_needed
from costmodel.mesh.framework_rules import takes_groups
from costmodel.mesh.schedule import schedule_is_legal
from costmodel.schedules import FEWEST, IN_GROUPS, SCHEDULES, VPP, schedule_of
from planner.measurements.hardware import defaults_of, framework_of_row
from planner.measurements.tables import Row, RowSkipped

_MEASURED = (
    "step_time_ms", "samples_per_s", "tokens_per_s_per_gpu", "tokens_per_s", "frames_per_s", "audio_samples_per_s",
)  # fmt: skip
# Beyond what roundings explain ("2 samples per second" may be 1.5) and throughputs of another number of devices, which do no harm beside a
# time; below seconds or microseconds for milliseconds.
_CONTRADICTION = 100.0


def has_failed(row: Row) -> bool:
    """Whether a run failed."""
    return row.flag("oom") is True


def not_measured() -> RowSkipped:
    """A training run that states no time and no throughput."""
    return RowSkipped("no measured time", needs=(_MEASURED,))


def is_measured(row: Row) -> bool:
    """Whether a training run states a time or a throughput."""
    return any(row.number(name) is not None for name in _MEASURED)


def step_time_s(
    row: Row,
    *,
    global_batch: int | None = None,
    gpus: int | None = None,
    seq: int | None = None,
    counts: Mapping[str, int] | None = None,
) -> float | None:
    """Measured seconds of a step, from the time itself or a throughput; None where nothing is stated.

    Parameters
    ----------
    row : Row
    global_batch, gpus, seq : int, optional
        What follows for a row that does not state them.
    counts : mapping, optional
        What else people count of a sample of the network (`planner.files.loading.LoadedModel.counts`); its own unit first.

    Raises
    ------
    RowSkipped
        The time and a throughput beside it contradict each other.

    Examples
    --------
    >>> step_time_s(Row(line=2, cells={"tokens_per_s_per_gpu": "1000", "gpus": "8", "global_batch": "16", "seq": "2048"}))
    4.096
    >>> step_time_s(Row(line=2, cells={"samples_per_s": "100"}), global_batch=32)
    0.32
    """
    batch = global_batch or row.number("global_batch")
    said = {name: row.number(name) for name in _MEASURED}
    rates = {name: rate for name, rate in said.items() if rate is not None}
    work_of = _work_of_a_step(row, batch, gpus, seq, counts)
    by_throughput = {name: work / rates[name] for name, work in work_of.items() if work and name in rates}
    time_ms = said["step_time_ms"]
    if time_ms is None:
        return next(iter(by_throughput.values()), None)
    for name, seconds in by_throughput.items():
        if not 1.0 / _CONTRADICTION <= seconds / (time_ms * 1e-3) <= _CONTRADICTION:
            raise RowSkipped(f"step_time_ms and {name} contradict each other: wrong unit?")
    return time_ms * 1e-3


def _work_of_a_step(
    row: Row, batch: float | None, gpus: int | None, seq: int | None, counts: Mapping[str, int] | None = None
) -> dict[str, float]:
    """What a step does in the unit of each throughput; 0 where that is not known."""
    devices, positions = row.number("gpus") or gpus or 0, row.number("seq") or seq or 0
    samples = batch or 0.0
    each = {"samples": 1.0, **(counts or {})}
    each.setdefault("tokens", positions)
    return {
        "samples_per_s": samples,
        "tokens_per_s_per_gpu": samples * each["tokens"] / devices if devices else 0.0,
        "tokens_per_s": samples * each["tokens"],
        "frames_per_s": samples * each.get("frames", 0.0),
        "audio_samples_per_s": samples * each.get("audio_samples", 0.0),
    }


_MOST_DEVICES = 10**6  # as of a question


class ImpossiblePlan(RowSkipped):
    """The numbers of a row contradict one another: right where the run failed, else a row that cannot be scored."""


def degrees_of(row: Row, node: int = 0, others: int = 0) -> tuple[int, int, int, int]:
    """tp, pp, cp, dp; they multiply to the devices, but for ``others`` that do something else.

    Parameters
    ----------
    row : Row
    node : int
        Devices of a node, for rows that state nodes only; 0: nobody knows.

    Raises
    ------
    ImpossiblePlan
        They do not.
    RowSkipped
        Nothing says how many devices there are.
    """
    tp, pp, cp, dp = (row.count(name) for name in ("tp", "pp", "cp", "dp"))
    gpus = devices_of(row, node) if dp is None else row.count("gpus")
    gpus = None if gpus is None else gpus - others
    if gpus is None or gpus != dp:  # where every device is a replica, nothing is left open
        tp = tp or row.default("tp", 1)
        pp = pp or row.default("pp", 1)
    tp, pp, cp = tp or 1, pp or 1, cp or 1
    if dp is None:
        if gpus is None:
            raise RowSkipped("neither gpus nor dp is stated", needs=(("gpus", "dp", "nodes"),))
        if gpus % (tp * pp * cp):
            raise ImpossiblePlan("tp x pp x cp does not divide the GPUs")
        dp = gpus // (tp * pp * cp)
    if tp * pp * cp * dp > _MOST_DEVICES:
        raise RowSkipped(f"tp x pp x cp x dp is above {_MOST_DEVICES:,}")
    if gpus is not None and tp * pp * cp * dp != gpus:
        raise ImpossiblePlan("tp x pp x cp x dp is not the number of GPUs")
    return tp, pp, cp, dp


def devices_of(row: Row, node: int = 0) -> int | None:
    """Devices in use: as stated, else those of all nodes; None where nothing says how many nodes there are.

    >>> devices_of(Row(line=2, cells={"nodes": "4", "gpus_per_node": "8"})), devices_of(Row(line=2, cells={"nodes": "4"}))
    (32, None)
    """
    stated, nodes = row.count("gpus"), row.count("nodes")
    if stated is not None or nodes is None:
        return stated
    each = row.count("gpus_per_node")
    if each is None and node:
        each = row.default("gpus_per_node", node)
    return nodes * each if each else None


def batches_of(row: Row, dp: int) -> tuple[list[tuple[int, int]], int]:
    """(micro-batch, micro-batches per step and replica), several where the row leaves it open; and the global batch."""
    micro_batch, accumulated = row.count("micro_batch"), row.count("grad_accum")
    global_batch, each = row.count("global_batch"), row.count("batch_per_gpu")
    if global_batch is None and each is not None:
        global_batch = each * dp
    elif global_batch is None and micro_batch is not None:
        accumulated = accumulated or row.default("grad_accum", 1)
        global_batch = micro_batch * accumulated * dp
    elif global_batch is None:
        raise RowSkipped(
            "neither global_batch nor micro_batch is stated", needs=(("global_batch", "micro_batch", "batch_per_gpu"),)
        )
    if dp > global_batch:
        raise ImpossiblePlan("there are more data-parallel ranks than samples in the global batch")
    per_replica = -(-global_batch // dp)
    _check_division(row, dp, micro_batch, global_batch)
    if micro_batch is not None:
        count = -(-per_replica // micro_batch)
        if accumulated is not None and accumulated * micro_batch != per_replica:  # the batch decides
            row.default("grad_accum", count)
        return [(micro_batch, count)], global_batch
    if accumulated is not None:
        return [(-(-per_replica // accumulated), accumulated)], global_batch
    return _open_batches(row, per_replica), global_batch


def _check_division(row: Row, dp: int, micro_batch: int | None, global_batch: int) -> None:
    """Every replica runs the same number of whole micro-batches, as Megatron-LM, DeepSpeed and nanotron assert.

    Composer's last one may be smaller, and counts as a whole one. Where the replicas follow from other columns the fullest one decides.

    Raises
    ------
    ImpossiblePlan
        The stated numbers do not divide the stated batch.
    """
    if micro_batch is not None and micro_batch > -(-global_batch // dp):
        raise ImpossiblePlan("micro_batch x dp is more than the global batch")
    if global_batch % ((micro_batch or 1) * dp) == 0:
        return
    is_cut = global_batch % dp == 0 and defaults_of(row).last_micro_batch_is_smaller
    if not is_cut and row.has("dp", "global_batch"):
        what = "dp" if micro_batch is None else "micro_batch x dp"
        raise ImpossiblePlan(f"{what} does not divide the global batch")
    if global_batch % dp:
        row.default("dp", "does not divide global_batch")
    else:
        row.default("micro_batch", "does not divide global_batch / dp")


def _open_batches(row: Row, per_replica: int) -> list[tuple[int, int]]:
    """Where a row leaves it open: the whole of a replica where its framework accumulates nothing, else any power of two or the whole."""
    if not defaults_of(row).accumulates:
        return [(row.default("micro_batch", per_replica), 1)]
    row.default("micro_batch", "tuned")
    sizes = sorted({per_replica, *(2**n for n in range(per_replica.bit_length()) if per_replica % 2**n == 0)})
    return [(size, per_replica // size) for size in sizes]


def stages_of(row: Row, chunks: int, blocks: int) -> tuple[int, ...]:
    """Blocks of every chunk of the pipeline, as stated; empty where nothing is, or there is one chunk.

    >>> stages_of(Row(line=2, cells={"stage_blocks": "6/9/9/8"}), 4, 32)
    (6, 9, 9, 8)

    Raises
    ------
    RowSkipped
        It states other chunks or blocks than the rest of the row.
    """
    text = row.text("stage_blocks")
    stated = tuple(int(word) for word in text.split("/")) if text else ()
    if stated and (len(stated) != chunks or sum(stated) != blocks):
        raise RowSkipped(f"stage_blocks {text} is not {blocks} blocks in {chunks} chunks (pp x vpp)")
    return stated if chunks > 1 else ()


# -- sharding ------------------------------------------------------------------------------------------------------------------


def sharding_choices(row: Row, dp: int, cp: int, *, is_pipelined: bool = False) -> list[tuple[int, int, int]]:
    """What `sharding_of` says, and where nothing does, what shares more: taken in turn until a plan fits the devices.

    Parameters
    ----------
    row : Row
    dp, cp : int
    is_pipelined : bool
        Weights that are gathered for every micro-batch and stage are not what pipelines are run with.

    Examples
    --------
    >>> sharding_choices(Row(line=2, cells={"zero_stage": "0"}), dp=8, cp=1), sharding_choices(Row(line=2, cells={}), dp=8, cp=1)
    ([(0, 8, 1)], [(0, 8, 1), (1, 1, 8), (3, 1, 8)])
    """
    first = sharding_of(row, dp, cp)
    if first[0] or dp == 1 or "zero_stage" not in row.defaults:
        return [first]
    return [first, *((stage, 1, dp) for stage in ((1,) if is_pipelined else (1, 3)))]


def sharding_of(row: Row, dp: int, cp: int) -> tuple[int, int, int]:
    """ZeRO stage, replicas with a copy of their own, and ranks that share one.

    >>> sharding_of(Row(line=2, cells={"zero_stage": "1", "shard_group": "8"}), dp=64, cp=1)
    (1, 8, 8)
    """
    stated = row.text("zero_stage")
    stage = int(stated) if stated else row.default("zero_stage", defaults_of(row).zero_stage or 0)
    if stage == 0 or (dp * cp == 1):
        return 0, dp, 1
    size = row.count("shard_group") or dp
    if dp % size:
        return stage, 1, dp
    return (stage, dp // size, size) if size * cp > 1 else (0, dp, 1)


# -- schedules -----------------------------------------------------------------------------------------------------------------

# Embedding and loss: Megatron-LM counts each as a layer where it is told to (account_for_embedding_in_pipeline_split and the like).
_OTHER_UNITS = 2


def chunk_choices(row: Row, pp: int, blocks: int) -> tuple[int, ...]:
    """Chunks per pipeline rank: as stated, or all numbers that cut the blocks evenly where the row leaves open how many are interleaved.

    It does where it says that they are interleaved, and where it says nothing of a framework that usually does so. Embedding and loss are
    counted among the blocks where these alone cannot be cut. Without a pipeline chunks mean nothing; more of them than blocks are a slip
    there, too.

    >>> row = Row(line=2, cells={"vpp": "2"})
    >>> chunk_choices(row, 4, 32), len(row.defaults), chunk_choices(row, 1, 32), row.defaults
    ((2,), 0, (1,), {'vpp': 1})
    >>> chunk_choices(Row(line=2, cells={"schedule": "interleaved"}), 16, 126)
    (2, 4, 8)

    Raises
    ------
    ImpossiblePlan
        More chunks than blocks, and than embedding and loss beside them that some frameworks count among the layers.
    """
    stated = row.count("vpp")
    if stated is not None and stated > 1:
        if pp * stated > blocks + (_OTHER_UNITS if pp > 1 else 0):
            raise ImpossiblePlan(f"pp {pp} x vpp {stated} is more than the {blocks} blocks of the network")
        return (stated if pp > 1 else int(row.default("vpp", 1)),)
    schedule = row.text("schedule")
    own = schedule_of(schedule).vpp if schedule else 1
    if stated is not None or pp < 2 or not (own == 0 or (not schedule and defaults_of(row).interleaves)):
        return (max(own, 1) if pp > 1 else 1,)
    cuts = (
        tuple(v for v in range(2, units // pp + 1) if units % (pp * v) == 0)
        for units in range(blocks, blocks + _OTHER_UNITS + 1)
    )
    some = next(filter(None, cuts), ())
    row.default("vpp", "the fastest that fits")
    return (some or (2,)) if schedule else (1, *some)


def schedules_of(row: Row, pp: int, vpp: int, counts: Sequence[int]) -> dict[int, str]:
    """Names of `costmodel.schedules.SCHEDULES` for plans of ``pp`` stages with ``vpp`` chunks, by their numbers of micro-batches.

    As stated, for the counts that the schedule can run; where nothing is, chunks are interleaved if the framework takes groups of so many
    micro-batches.

    >>> row = Row(line=2, cells={"schedule": "zero_bubble"})
    >>> schedules_of(row, 8, 1, [32]), schedules_of(row, 1, 1, [32]), schedules_of(Row(line=2, cells={}), 8, 2, [32])
    ({32: 'zero_bubble'}, {32: '1f1b'}, {32: 'interleaved'})

    Raises
    ------
    ImpossiblePlan
        The schedule runs no such plan.
    RowSkipped
        The framework does not have it.
    """
    stated = row.text("schedule") if pp > 1 else ""
    framework, every = framework_of_row(row), np.array(counts)
    position = SCHEDULES.index(stated or ("interleaved" if vpp > 1 else "1f1b"))
    legal = schedule_is_legal(*np.broadcast_arrays(position, every, pp, vpp))
    if IN_GROUPS[position]:
        legal &= takes_groups(framework.rules.groups, every, np.array(pp))
    if not stated:
        if row.has("vpp") and not legal.all():
            row.default("vpp", 1)
        return {
            count: SCHEDULES[position] if fits else "1f1b" for count, fits in zip(counts, legal.tolist(), strict=True)
        }
    if not legal.any():
        needs = f"vpp {VPP[position] or 'of 2 or more'}"
        needs += f" and {FEWEST[position]} pp micro-batches or more" if FEWEST[position] else ""
        needs += f", in {framework.rules.groups} groups" if IN_GROUPS[position] else ""
        raise ImpossiblePlan(f"schedule {stated} needs {needs}")
    plan = {"schedule": stated, "pp": pp, "vpp": vpp}
    for rule in framework.rules.of():
        if rule.when.keys() <= plan.keys() and rule.holds_for(plan):
            raise RowSkipped(f"schedule {stated}: {rule.why}")
    return dict.fromkeys(every[legal].tolist(), stated)


# -- recomputation -------------------------------------------------------------------------------------------------------------


def cp_kind_of(row: Row) -> str:
    """How attention sees the positions of other ranks: as stated, else the first way that the framework has.

    >>> [cp_kind_of(Row(line=2, cells={"framework": name})) for name in ("deepspeed", "megatron-lm")]
    ['all_to_all', 'ring']
    """
    return row.text("cp_kind") or framework_of_row(row).rules.cp_kind


_OFFLOADED = {"optimizer": "cpu_offload", "activations": "activation_offload"}


def offloads(row: Row, what: str) -> bool:
    """Whether the host keeps the optimizer, or activations: as stated, else as recipes of the framework have it."""
    stated = row.flag(_OFFLOADED[what])
    return what in defaults_of(row).offloads.split() if stated is None else stated


def recompute_choices(row: Row, blocks: int, chunks: int = 1) -> tuple[tuple[str, int], ...]:
    """Names of `costmodel.mesh.plan.RECOMPUTE` and blocks of a chunk: what the row says, or what it leaves open.

    Parameters
    ----------
    row : Row
    blocks : int
        Of the network.
    chunks : int
        Of its pipeline.

    Examples
    --------
    >>> [recompute_choices(Row(line=2, cells={"recompute": text}), 32, 2) for text in ("full", "selective")]
    [(('full', 32),), (('selective', 0),)]
    """
    usual = defaults_of(row)
    if not row.text("recompute") and usual.recompute == "as_needed":
        row.default("recompute", "as needed")
        return recompute_as_needed(-(-blocks // chunks))
    counted = row.count("recompute_blocks")
    if counted is not None:
        return (("full", min(counted, blocks)),)
    name = row.text("recompute") or row.default("recompute", "full" if usual.recompute == "full" else "none")
    return ((name, blocks if name == "full" else 0),)
