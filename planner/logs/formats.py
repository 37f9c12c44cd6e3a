"""How training frameworks write their logs: one entry of `FORMATS` each, which also recognises the log.

To add one, write an entry: the line of a step with its fields, the lines about memory and timers, where they can be looked up. What a log
says of the plan that ran is read in `planner.logs.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_MIB, _GIB = 2.0**20, 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the step that timers of a log measure.

    Attributes
    ----------
    label : str
        What people call it.
    figures : tuple of str
        Figures of a plan (`costmodel.mesh.plan.STEP_FIGURES`) that predict it; empty: it is predicted to be hidden.
    add, less : tuple of str
        Timers that add up to it, of the slowest rank, and timers inside of these that belong to other parts.
    fastest : bool
        Of `add`, the time of the fastest rank counts: the others also wait for the slowest one.
    """

    label: str
    figures: tuple[str, ...]
    add: tuple[str, ...]
    less: tuple[str, ...] = ()
    fastest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The log of one framework.

    Attributes
    ----------
    title : str
    trainer : str
        A name of `planner.exporters.EXPORTERS`, whose framework is predicted.
    step : pattern
        Found in the lines about steps; its group is the number of the step.
    needs : tuple of str
        Such a line holds one of these texts.
    fields : mapping of str to pattern
        What such a line says, the value as the group: ``step_s``, ``step_ms``, ``tokens_per_s_per_gpu``, ``samples_per_s``, ``batch``;
        of progress bars ``bar`` (done, total, elapsed), and of the whole run ``run_s``, ``steps_per_s``.
    memory : mapping of str to (pattern, float)
        What is counted (a name of `costmodel.mesh.plan.MEASURED_MEMORY`) -> value, and bytes in its unit.
    parts : tuple of Part
    mark : str
        Text that every such log has and others with the same lines lack; empty: none.
    timers_hint : str
        How to have the parts of a step written; empty: the log has none.
    beside : frozenset of str
        Formats whose lines such a log may also have.
    source : str
        Where the lines can be looked up.
    """

    title: str
    trainer: str
    step: re.Pattern[str]
    needs: tuple[str, ...]
    fields: Mapping[str, re.Pattern[str]]
    memory: Mapping[str, tuple[re.Pattern[str], float]] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    mark: str = ""
    timers_hint: str = ""
    beside: frozenset[str] = frozenset()
    source: str

    def step_in(self, line: str) -> re.Match[str] | None:
        """Find the number of a step in a line about one; None where it is about something else."""
        return self.step.search(line) if any(text in line for text in self.needs) else None


_VALUE = r"\s*([^\s|,]+(?:,\d{3})*)"


def _after(label: str) -> re.Pattern[str]:
    return re.compile(re.escape(label) + _VALUE)


_ALL_BUT_UPDATE = (
    "compute_s",
    "recompute_s",
    "tp_exposed_s",
    "cp_exposed_s",
    "ep_exposed_s",
    "pp_exposed_s",
    "bubble_s",
)
READING = "reading batches"
_EXCHANGE = "gradient exchange"
# The timer forward-backward ends after the gradients are exchanged (megatron/core/pipeline_parallel/schedules.py), and micro-batches are
# read inside of it.
_MEGATRON_PARTS = (
    Part(
        label="forward and backward",
        figures=_ALL_BUT_UPDATE,
        add=("forward-backward",),
        less=("batch-generator", "all-grads-sync"),
    ),
    Part(label=READING, figures=(), add=("batch-generator",)),
    Part(label=_EXCHANGE, figures=("dp_exposed_s",), add=("all-grads-sync", "params-all-gather"), fastest=True),
    Part(label="optimizer", figures=("optimizer_s", "offload_s"), add=("optimizer",)),
)
_MEGATRON = Format(
    title="Megatron-LM",
    trainer="megatron",
    step=re.compile(r"(?<![\w-])iteration\s+(\d+)\s*/\s*(?:\d+|infinity)\s*\|"),
    needs=("elapsed time per iteration",),
    fields={"step_ms": _after("elapsed time per iteration (ms):"), "batch": _after("global batch size:")},
    memory={"allocated": (_after("| max allocated:"), _MIB), "reserved": (_after("| max reserved:"), _MIB)},
    parts=_MEGATRON_PARTS,
    timers_hint="--timing-log-level 1 --timing-log-option minmax",
    beside=frozenset({"deepspeed"}),
    source="Megatron-LM, megatron/training/training.py, training_log; megatron/core/timers.py; training/utils.py, report_memory",
)

FORMATS: dict[str, Format] = {
    "megatron-bridge": replace(
        _MEGATRON,
        title="Megatron-Bridge",
        trainer="megatron-bridge",
        memory={
            "allocated": (_after("mem-max-allocated-gigabytes:"), 1e9),
            "reserved": (_after("mem-max-reserved-gigabytes:"), 1e9),
        },
        mark="MODEL_TFLOP/s/GPU",
        beside=frozenset({"megatron"}),
        timers_hint="logger.timing_log_level=1 logger.timing_log_option=minmax",
        source="Megatron-Bridge, src/megatron/bridge/training/utils/train_utils.py, training_log and report_memory",
    ),
    "nemo": Format(
        title="NeMo",
        trainer="megatron-bridge",
        step=re.compile(r"global_step[:=]\s*(\d+)"),
        needs=("train_step_timing in s",),
        fields={
            "step_s": re.compile(r"train_step_timing in s[:=]" + _VALUE),
            "batch": re.compile(r"global_batch_size[:=]" + _VALUE),
        },
        source="NeMo 2, nemo/lightning/pytorch/callbacks/progress_printer.py; nemo/utils/exp_manager.py, TimingCallback",
    ),
    "megatron": _MEGATRON,
    "torchtitan": Format(
        title="torchtitan",
        trainer="torchtitan",
        step=re.compile(r"\bstep:\s*([\d,]+)\s"),
        needs=(" tps:",),
        fields={"tokens_per_s_per_gpu": _after("tps:")},
        memory={"reserved": (re.compile(r"\bmemory:\s*([^\s(]+?)GiB"), _GIB)},
        source="torchtitan, torchtitan/components/metrics.py, MetricsProcessor.log: time since the last line, of every rank",
    ),
    "nanotron": Format(
        title="nanotron",
        trainer="nanotron",
        step=re.compile(r"\biteration:\s*(\d+)\s*/\s*\d+\s*\|"),
        needs=("elapsed_time_per_iteration_ms:",),
        fields={"step_ms": _after("elapsed_time_per_iteration_ms:"), "batch": _after("global_batch_size:")},
        memory={
            "allocated": (re.compile(r"Peak allocated:?\s*([^\s]+?)MiB"), _MIB),
            "reserved": (re.compile(r"Peak reserved:?\s*([^\s]+?)MiB"), _MIB),
        },
        source="nanotron, src/nanotron/trainer.py, train_step_logs; src/nanotron/logging, human_format",
    ),
    "huggingface": Format(
        title="Hugging Face Trainer",
        trainer="accelerate",
        step=re.compile(r"\|\s*\d+/\d+ \[[\d:]+<[^\]]*(?:it/s|s/it)|['\"]train_runtime['\"]:"),
        needs=("it/s", "s/it", "train_runtime"),
        fields={
            "bar": re.compile(r"\|\s*(\d+)/(\d+) \[([\d:]+)<[^\]]*(?:it/s|s/it)"),
            "run_s": re.compile(r"['\"]train_runtime['\"]:\s*['\"]?([^\s,}'\"]+)"),
            "steps_per_s": re.compile(r"['\"]train_steps_per_second['\"]:\s*['\"]?([^\s,}'\"]+)"),
        },
        beside=frozenset({"deepspeed"}),
        source="transformers, src/transformers/trainer_utils.py, speed_metrics; trainer_callback.py, ProgressCallback (tqdm)",
    ),
    "deepspeed": Format(
        title="DeepSpeed",
        trainer="deepspeed",
        step=re.compile(r"global_step=(\d+), RunningAvgSamplesPerSec=|\bsteps:\s*(\d+)\s+loss:"),
        needs=("RunningAvgSamplesPerSec=", "iter time (s):"),
        fields={"samples_per_s": _after("CurrSamplesPerSec="), "step_s": _after("iter time (s):")},
        memory={"allocated": (re.compile(r"MaxMemAllocated=\s*([^\s]+?)GB"), _GIB)},
        parts=(
            Part(label="forward and backward", figures=_ALL_BUT_UPDATE, add=("fwd", "bwd_inner")),
            Part(label=_EXCHANGE, figures=("dp_exposed_s",), add=("bwd_allreduce",)),
            Part(label="optimizer", figures=("optimizer_s", "offload_s"), add=("step",)),
        ),
        timers_hint='"wall_clock_breakdown": true',
        source="DeepSpeed, deepspeed/utils/timer.py, ThroughputTimer and SynchronizedWallClockTimer; runtime/pipe/engine.py",
    ),
}
