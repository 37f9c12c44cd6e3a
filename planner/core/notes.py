"""What an answer has to say besides its figures: codes with values, and the one place that turns them into sentences."""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from planner.core.numbers import (
    byte_text,
    chance_text,
    counted,
    duration_text,
    joined_words,
    percent,
    rough_percent,
    significant,
)
from planner.core.objectives import compared_words

# Code -> its sentence. A part in [] is left out where one of its values is missing.
SENTENCES: Mapping[str, str] = {
    "remark": "{text}",
    # of every space
    "interrupted": "interrupted: the best so far is shown",
    "out_of_time": "stopped by the time limit: --time-limit gives the search longer",
    "numbers_without_source": "{file} has no 'source', so nobody can tell where its numbers come from",
    "memory_limit_above_device": "--memory-limit {limit} is more than one {device} has: {capacity_bytes:bytes}",
    "does_not_fit": (
        "does not fit: [{group} ]needs {needed_bytes:bytes} per GPU, there are {capacity_bytes:bytes}"
        "[ of {device_bytes:bytes} to plan with; P(fits) is {fits_probability:chance}]"
        "[; most of it are {largest} ({largest_bytes:bytes})]"
        "[; the host is full: it has room for {host_bytes:bytes} per GPU ({host})]"
        "[; it fits with --max-batch {max_batch}][; no number of sequences fits; use {more}]"
    ),
    # of a mesh
    "plans_not_counted": "the space holds more plans than were counted: the time limit came before all were counted",
    "similar_plans_left_out": ("Near-copies[, {roles:roles} above among them,] are left out: --no-diverse shows them."),
    "waits_for_hosts": (
        "{share:share} of the step, devices wait for their hosts to start kernels and collectives: the layers of a rank are "
        "small. Larger micro-batches, less splitting, or CUDA graphs and fused kernels help; what is assumed of hosts (eager PyTorch) is "
        "--assume host_launch_s=... and host_collective_s=..."
    ),
    "latency_of_buckets": (
        "{share:share} of the step is the latency of collectives over {ranks} ranks, which every bucket of gradients or weights pays; "
        "larger buckets help (--assume bucket_bytes_per_rank=4e6 shows by how much, the rule of Megatron-LM)"
    ),
    "latency_of_units": (
        "{share:share} of the step is the latency of collectives over {ranks} ranks, which every unit of weights pays in every pass; "
        "sharing the weights within smaller groups helps (hybrid sharding: --dp-replicate)"
    ),
    "power_limited": (
        "{device} is at its power limit[ of {power_w:g} W] in large products: in {number_format} they run at {share:share} of what they "
        "reach at full clocks (`planner list devices {device} -v`)"
    ),
    "fits_with": "it fits with {options}: {step_time_s:time} per step",
    "fits_with_nothing": (
        "no ZeRO stage, recomputation, offload or smaller micro-batch makes it fit; `planner optimize` searches the other degrees"
    ),
    "activations_on_host": (
        "the plan keeps activations on the host, which few trainers have a setting for (docs/export.md); "
        "--offload none, or optimizer, searches without it"
    ),
    "host_not_described": (
        "the plan keeps up to {host_bytes:bytes} per GPU on its host, and cluster '{cluster}' does not describe its hosts: that much room "
        "is taken for granted ('host: {{devices: 8, memory: 2 TB}}' in a cluster file states it; --offload none does without)"
    ),
    "domains_in_part": (
        "uses {used} of the {size} GPUs of {domains} {domain} domains; whole nodes with the other {idle} GPUs are left to other jobs"
    ),
    "nodes_in_part": "uses {used} of the {size} GPUs of {domains} nodes; the other {idle} GPUs stay idle unless nodes are shared by jobs",
    "more_domains": (
        "this plan needs {domains} {domain} domains; full ones would be {least}. Use --domain-gpus {size} if you have only {least}"
    ),
    "groups_straddle": (
        "{traffic}: some groups of {group} ranks lie in {touched} {domain} domains, with as few as {fewest} ranks in one"
        "[; --domain-gpus {other} keeps them in one]"
    ),
    "depends_on_assumption": (
        "the first plan depends on {assumption} {value:g}: with {other_value:g} ({meaning}) it takes {step_time_s:time}, and {other_plan} "
        "takes {other_step_time_s:time}; --assume {assumption}={other_value:g} searches all plans under it"
    ),
    "assumption_without_effect": "--assume {assumption}={value:g} changes nothing about this plan; it means: {meaning}",
    "rounder_batch": (
        "batch {batch} and {gpus} GPUs have no divisor[ above {shared}] in common: --batch {other_batch} takes {step_time_s:time} "
        "({plan}), {speedup:faster} per sample"
    ),
    "batch_limits_gpus": (
        "the batch limits what more GPUs bring[: every one of {ranks} data-parallel ranks has one sample]"
        "[; {idle} of {gpus} GPUs stay idle]; --batch {other_batch} takes {step_time_s:time} ({plan}), {speedup:faster} per sample"
    ),
    "rule_binds": (
        "{framework} does not run a faster plan, {plan}, which would take {step_time_s:time} ({saved:gap} less): {rules}"
    ),
    "option_binds": ("{option} costs {saved:gap} of the step: without it {plan} takes {step_time_s:time}"),
    # of a log beside its prediction
    "check_largest_part": "{part} makes most of the difference: {measured_s:time} measured, {predicted_s:time} predicted",
    "check_slow_steps": (
        "{slow} of {steps} steps took over 1.2 times the median (line {lines} of the log): without them the mean step would be "
        "{saved:share} shorter; look for checkpoints, evaluations, a slow node"
    ),
    "check_drift": (
        "the last fifth of the steps takes {share:share} {than} the first: look at clocks (heat), at the lengths of samples and at the "
        "balance of experts"
    ),
    "check_stragglers": (
        "ranks wait up to {waits_s:time} a step for the slowest one in {timer} ({share:share} of the step): look for a slow device or "
        "node, or uneven work"
    ),
    "check_uneven": "{timer} takes {slowest_s:time} on the slowest rank and {fastest_s:time} on the fastest one",
    "check_reading": (
        "reading batches takes {seconds:time} a step ({share:share}), which the prediction takes to be hidden: more loader workers, "
        "faster storage or batches prepared ahead help"
    ),
    "check_own_timer": (
        "DeepSpeed's timer counts {timer_s:time} of the {step_s:time} between steps; reading batches and what the program does between "
        "steps take the rest"
    ),
    "check_no_parts": "the log has no times of the parts of a step[; {title} writes them with {hint}]",
    "check_whole_run": (
        "the time is the mean of the whole run: its start, evaluations and checkpoints are in it, so steps are shorter"
    ),
    "check_starts": "the program was started {starts} times; the steps of the last start count",
    "check_few_steps": "only {steps} lines remain after the warm-up: a longer log says more",
    "check_other_cluster": "--cluster is not given: the prediction is for {cluster}; name what the run was on",
    "check_memory_over": "the run held {measured_bytes:bytes} per GPU, more than the prediction's device has ({capacity_bytes:bytes})",
    "check_calibrate": "to keep the run, and to fit the cost model to your runs once there are enough: {command}",
    # of a split per layer
    "data_parallelism_wins": (
        "data parallelism wins[: {hidden:share} of its gradient exchange hides behind the backward pass]"
    ),
    "family_wins_narrowly": "{family:family} wins by less than 1 % of the step in every term",
    "family_wins": (
        "{family:family} wins: against the best data parallelism (x{workers}) it saves {saved_s:times}[ and pays {paid_s:times}]"
    ),
    "model_parallel_bounds": (
        "PALEO's bounds with the branches on different devices: forward {forward_low_s:time} to {forward_high_s:time}, backward "
        "{backward_low_s:time} to {backward_high_s:time}"
    ),
    # of several kinds of devices
    "number_format": "{groups:have} no {wanted}, so the whole job runs in {used}",
    "group_alone_is_better": (
        "{group} alone is {better}, with a plan that is not searched here: {plan}; a cluster file with that group only asks for it"
    ),
    "gpus_by_group": "--gpus {gpus} are counted through the groups in their order: {groups:counts}",
    "group_slows": "{group} would only slow the best plan down and stays idle",
    "group_no_better": "{group} would make the best plan no better and stays idle",
    "group_not_used": "{group} is not in the best plan found and stays idle",
    "groups_shared": "no plan with GPUs of its own for every pipeline is {better}; plans whose pipelines share a group were not all tried",
    "fullest_device": "most of the fullest device ({group}) are {largest}: {largest_bytes:bytes}",
    "not_proven": (
        "the best plan is not proven: another could be up to {gap:gap} {better}; --time-limit gives the search longer"
    ),
    # of serving
    "no_limits": "the most tokens/s come with slow answers; --max-ttft and --max-tpot say how slow they may be",
    "beyond_context": (
        "a prompt of {prompt:,} and an answer of {output:,} tokens are more than the {context:,} that {network} was trained "
        "for: longer ones need other weights"
    ),
    "uneven_experts": (
        "the best plan has replicas that share experts, whose loads are taken to be uneven (no load balancer moves them); with "
        "one, --assume expert_spread=0"
    ),
    "prompts_apart": (
        "the best plan has replicas that share experts, which wait for one another's prompts; where a scheduler has all read "
        "together, --assume prompts_in_step=1"
    ),
    "prefix_found": (
        "the prompts find {assumed:share} of their tokens in a cache without limits, as assumed; the caches of the best plan, of "
        "{room:,} tokens each, have {kept:share}[, and {in_turn:share} if its {replicas} replicas get requests in turn rather than from "
        "a router that knows their caches]; --prefix-cached X asks with another share"
    ),
    "most_sequences": (
        "the best plan holds the most sequences that are tried ({max_batch} per replica); --max-batch 1..4096 tries more"
    ),
    "limits_unlikely": (
        "no plan keeps the limits with {asked:share}: these keep them as predicted, and P(keeps limits) says how likely that is"
    ),
    "rather_misses_one": (
        "keeps the limits with {share:share} only: plans that keep them with {asked:share} are ranked before it"
    ),
    "misses_limit": "misses the limit: {figure} {value_s:time}, at most {limit_s:time} asked for",
    "wide_interval": (
        "the 80 % interval is {ratio:number}x wide: {why}; steps of your own narrow it ('planner calibrate', docs/calibration.md)"
    ),
    # of scaling curves
    "no_plan_on": "{gpus:gpus}: {reason}",
    "speedup_over_first": (
        "speed-up counts the {gpus} GPUs of the first point as {gpus} times one, for which there is no plan"
    ),
    "speedup_over_one": "speed-up is over {plan}: {step_time_s:time} per step",
}
# Notes about a table of plans, which stand under it.
UNDER_PLANS = frozenset({"similar_plans_left_out"})
_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "time": duration_text,
    "times": lambda terms: " and ".join(f"{duration_text(seconds)} of {name}" for name, seconds in terms.items()),
    "ms": lambda seconds: f"{1e3 * seconds:.3g}",
    "bytes": byte_text,
    "share": percent,
    "gap": rough_percent,
    "faster": lambda speedup: compared_words(1.0 / speedup, "step_time"),
    "chance": chance_text,
    "family": {
        "model": "model parallelism",
        "hybrid": "hybrid parallelism",
        "spatial": "splitting images along their height",
        "pipeline": "a pipeline",
        "mixed": "a different split for each layer",
    }.__getitem__,
    "number": significant,
    "names": ", ".join,
    "roles": lambda names: joined_words([f"'{name[:1].upper()}{name[1:].replace('_', ' ')}'" for name in names]),
    "have": lambda names: f"{', '.join(names)} {'have' if len(names) > 1 else 'has'}",
    "counts": lambda counts: ", ".join(f"{count} of {name}" for name, count in counts.items()),
    "gpus": lambda count: counted(count, "GPU"),
}


class _Words(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        write = _FORMATS.get(format_spec)
        return str(super().format_field(value, format_spec)) if write is None else write(value)


class Note(str):
    """A sentence that knows what it says: a code with values in SI units, None where there is none.

    >>> note = Note("does_not_fit", needed_bytes=96 * 2**30, capacity_bytes=80 * 2**30)
    >>> note, note.code, note.values["needed_bytes"]
    ('does not fit: needs 96.0 GiB per GPU, there are 80.0 GiB', 'does_not_fit', 103079215104)
    """

    code: str
    values: Mapping[str, Any]

    def __new__(cls, code: str, **values: Any) -> Note:
        """Write the sentence of a code."""
        note = super().__new__(cls, _sentence(SENTENCES[code], values))
        note.code, note.values = code, values
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (self.code,), dict(self.values)


def _sentence(template: str, values: Mapping[str, Any]) -> str:
    known, words = defaultdict(lambda: None, values), _Words()

    def part(match: re.Match[str]) -> str:
        names = [name for _, name, _, _ in words.parse(match[1]) if name]
        return match[1] if all(known[name] is not None for name in names) else ""

    return words.vformat(re.sub(r"\[([^]]*)\]", part, template), (), known)


def note_entry(note: str) -> dict[str, Any]:
    """A note as plain data; one that only a text is known of, such as an importer's, is a remark."""
    coded = note if isinstance(note, Note) else Note("remark", text=note)
    return {"code": coded.code, "values": dict(coded.values), "text": str(coded)}
