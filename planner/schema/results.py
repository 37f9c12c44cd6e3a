"""What `--json` prints of the commands that do not answer with a plan: list, compare, why-not, validate, measure, place, size, ..."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from costmodel.objectives import with_figures
from planner.core.request import LISTED, SPACES
from planner.schema.answer import AssumptionEntry, NoteEntry, ServingHead, cost_model
from planner.schema.calibration import CalibrationFile
from planner.schema.records import INTERVAL, LOW, Amount, Count, Number, Seconds, any_of, key, record, several

ListDocument = record(
    "ListDocument",
    "Answer of `planner list --json`.",
    schema_version=Literal[1],
    kind=Literal[LISTED],
    items=list[dict[str, Any]],
)

ShownValue = record(
    "ShownValue",
    "What a file states.",
    key=key(str, "Key of the file; of a level of links `links NAME`."),
    value=key(str, "As the file writes it, with its unit."),
    source=key(str | None, "Where the number comes from; null where the file does not say."),
)

ShowDocument = record(
    "ShowDocument",
    "Answer of `planner show --json`.",
    schema_version=Literal[1],
    kind=Literal["device", "cluster", "model", "framework", "failure"],
    name=str,
    description=str,
    file=key(str | None, "Its file; null of what is bundled."),
    facts=key(dict[str, Any], "What `planner list` says of it, its other names and, of a network, its size."),
    values=key(several(ShownValue), "What a file of hardware states, with sources; empty of networks and frameworks."),
    details=key(
        list[dict[str, Any]],
        "Rates of a device by format, links of a cluster, parts of a network, costs, defaults and rules of a framework: the rows of "
        "`planner list -v`.",
    ),
)

# -- planner compare ---------------------------------------------------------------------------------------------------------

ComparedPlan = record(
    "ComparedPlan",
    "One plan of a comparison.",
    label=key(str, "Its file, with as many folders as tell the files apart; or what it is."),
    space=Literal[tuple(SPACES)],
    model=str,
    cluster=str,
    summary=key(str, "The plan in words."),
    family=key(str, "Region of the space that it lies in."),
    workers=key(int, "GPUs in use.", ge=1),
    global_batch=key(int, "Samples per step; of serving, sequences at a time.", ge=1),
    seq=key(int | None, "Positions of a sample; null: the network's input is no sequence, or it is served."),
    step_time_s=key(Seconds, "Time of one step; of serving, the time per token."),
    step_time_low_s=key(Seconds | None, LOW),
    step_time_high_s=Seconds | None,
    time_s=key(Seconds, "Per `basis`."),
    relative_time=key(
        Number, "Time per `basis` (of serving, what the objective is about) over that of the first plan."
    ),
    samples_per_s=key(Number, "Of serving, requests per second."),
    tokens_per_s=key(Number | None, "Of serving, output tokens; null where there are no tokens."),
    ttft_s=key(Seconds | None, "Of serving: time to the first token."),
    memory_bytes_per_gpu=key(Amount, "Peak memory of the fullest GPU."),
    memory_capacity_bytes=key(Amount, "Memory that it may be predicted to need."),
    fits=bool,
    fits_probability=key(Number | None, "P(fits), by the errors of measured runs; null: they are not known."),
    mfu=key(Number | None, "Model FLOP utilisation; null where it is not known."),
    **{
        name: key(Number | None, f"In {cost.unit}; of serving, per token of every sequence. null: it is not known.")
        for name, cost in with_figures().items()
    },
    found=key(str | None, "How a search found the plan; null: it was given."),
)

TextDifference = record(
    "TextDifference",
    "One thing that differs, as text of each plan, in their order.",
    name=str,
    values=key(list[str], "`-` where a plan has no such thing."),
)

TimeDifference = record(
    "TimeDifference",
    "One term of the time of each plan, in their order.",
    key=str,
    name=str,
    values_s=key(list[Number | None], "Per `basis`."),
    differences_s=key(list[Number | None], "Against the first plan."),
)

MemoryDifference = record(
    "MemoryDifference",
    "One term of the memory of each plan, in their order.",
    key=key(str, "A term, or of splits per layer, layers."),
    name=str,
    values_bytes=list[Number | None],
    differences_bytes=key(list[Number | None], "Against the first plan."),
)

CompareDocument = record(
    "CompareDocument",
    "Answer of `planner compare --json`: plans side by side, each against the first.",
    schema_version=Literal[1],
    space=Literal["training", "serving"],
    basis=key(
        Literal["step", "sample", "token"],
        "What times are per: a step where all plans do the same work in one (of serving, a token of every sequence); else a sample, "
        "or a token where samples differ in length.",
    ),
    fastest=key(str, "Label of the fastest plan that fits."),
    is_same_question=key(bool, "Whether all plans answer the same question."),
    plans=key(several(ComparedPlan), min_length=2),
    question=key(several(TextDifference), "What was asked otherwise."),
    settings=key(several(TextDifference), "What differs in the plans."),
    layers=key(several(TextDifference), "Layers that are split otherwise, neighbours together."),
    same_settings=key(dict[str, str], "Settings of all plans that are not neutral."),
    times=key(several(TimeDifference), "Terms that add up to `time_s`."),
    first_token=key(several(TimeDifference), "Of serving: terms of the time to the first token."),
    memory=key(several(MemoryDifference), "Terms that add up to `memory_bytes_per_gpu`; empty where unknown."),
    why=key(list[str], "In sentences: what is compared, why a plan is faster, what its memory goes to."),
    warnings=key(list[str], "What no longer holds of the plan files."),
)

# -- planner check ----------------------------------------------------------------------------------------------------------

CheckedPart = record(
    "CheckedPart",
    "A part of the step that timers of the log measure.",
    part=str,
    predicted_s=Seconds,
    measured_s=key(Seconds, "Median over the steps that count."),
)

CheckedMemory = record(
    "CheckedMemory",
    "Memory of the fullest GPU.",
    counts=key(Literal["allocated", "reserved", "used"], "What the log counts, as in the column `memory_counts`."),
    predicted_bytes=Amount,
    measured_bytes=Amount,
)

CheckDocument = record(
    "CheckDocument",
    "The log of a run beside its prediction.",
    schema_version=Literal[1],
    log=key(str, "The file."),
    format=key(str, "Who wrote it, a word of `--log-format`."),
    inside=key(bool | None, "Whether the measured step is in the interval of the prediction; null: no error model."),
    measured_step_time_s=key(Seconds, "Median of the steps after the warm-up."),
    measured_5th_percentile_s=Seconds,
    measured_95th_percentile_s=Seconds,
    lines=key(Count, "Lines about steps that count."),
    warm_up_lines=key(Count, "Lines before them."),
    steps_per_line=key(Count, "A line is the mean of so many steps."),
    whole_run=key(bool, "The time is the mean of a whole run, its start included."),
    step_time_s=key(Seconds, "The prediction."),
    **INTERVAL,
    model=str,
    cluster=str,
    framework=key(str, "Empty: a well-tuned implementation."),
    gpus=key(int, ge=1),
    global_batch=key(int, ge=1),
    seq=key(int | None, "Positions of a sample."),
    summary=key(str, "The plan in words."),
    parts=key(several(CheckedPart), "Empty where the log has no timers."),
    memory=key(several(CheckedMemory), "Empty where the log does not say."),
    assumptions=key(several(AssumptionEntry), "What was predicted."),
    notes=key(list[str], "Sentences for people."),
    note_codes=key(several(NoteEntry), "The same notes for programs, in the same order."),
)

CheckedFigure = record(
    "CheckedFigure",
    "A figure of a server, in SI units.",
    figure=Literal["ttft_s", "tpot_s", "output_tokens_per_s"],
    measured=key(Amount, "Mean over the requests; the rate is of all together."),
    predicted=Amount,
    low=key(Amount | None, "Of the 80 % interval; null: no error model."),
    high=Amount | None,
    inside=bool | None,
)

ServerCheckDocument = record(
    "ServerCheckDocument",
    "The benchmark of a server beside its prediction.",
    schema_version=Literal[1],
    benchmark=key(str, "The file."),
    program=key(str, "What wrote it."),
    inside=key(bool | None, "Whether every figure with an interval was measured inside; null: none has one."),
    requests=key(int, "That were answered.", ge=1),
    failed=Count,
    concurrency=key(int | None, "Requests in flight at most; null: the file does not say, or all."),
    model=str,
    cluster=str,
    framework=key(str, "Empty: a well-tuned implementation."),
    gpus=key(int, ge=1),
    summary=key(str, "The plan in words."),
    figures=key(several(CheckedFigure), min_length=1),
    assumptions=key(several(AssumptionEntry), "What was predicted."),
    notes=key(list[str], "Sentences for people."),
)

AnyCheck = any_of(
    "AnyCheck",
    "Answer of `planner check --json`: about the log of a training run, or about the benchmark of a server.",
    [CheckDocument, ServerCheckDocument],
)

# -- planner validate --------------------------------------------------------------------------------------------------------

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

Figures = record(
    "Figures",
    "Figures of some rows; errors are shares of what was measured, and null where there is nothing to compare.",
    rows=key(Count, "Rows in all: `scored` plus the sum of `skipped`."),
    scored=Count,
    skipped=key(dict[str, Count], "Reason -> rows that were left out for it."),
    usable=key(Count, "Rows with a usable measurement and a known shape, or a failure."),
    coverage=key(Share | None, "scored / usable."),
    comparisons=key(Count, "Measured times; a row may have several."),
    mape=key(Amount | None, "Mean absolute error of the times."),
    median_ape=key(Amount | None, "Median."),
    p90_ape=key(Amount | None, "90th percentile."),
    bias=key(
        Number | None, "Mean of log(predicted / measured); null also where something is predicted to take no time."
    ),
    skill=key(Number | None, "1 - mape / that of FLOPs over peak at one fitted efficiency."),
    groups=key(Count, "Sets of at least three rows that differ in the plan only."),
    kendall_tau=key(Number | None, "Mean over groups of tau-b."),
    pair_accuracy=key(Share | None, "Mean over groups of the share of pairs in the right order."),
    regret_top1_mean=key(
        Amount | None, "Measured time of the pick (the predicted best that is predicted to fit) / best measured, mean."
    ),
    regret_top1_max=key(Amount | None, "The same, of the worst group."),
    regret_top3_mean=key(Amount | None, "The same for the best measured of the first three picks, mean."),
    interval_rows=key(
        Count,
        "Times of training steps whose 80 % interval is known; of large files evenly spaced ones may stand for all.",
    ),
    interval_coverage=key(Share | None, "Share of them that was measured inside."),
    interval_width=key(Amount | None, "Median of log(upper end / lower end)."),
    interval_score=key(
        Amount | None,
        "Mean of the width plus ten times how far outside the measurement is, of log(time); smaller is better.",
    ),
    interval_score_one_width=key(
        Amount | None, "The same of one width for all, that of the residuals of the calibration."
    ),
    interval_score_hindsight=key(Amount | None, "The same of the one width that suits these rows best."),
    list_questions=key(Count, "Groups with at least three different plans."),
    list_holds_best=key(Share | None, "Share of them whose list to benchmark holds the plan measured best."),
    list_length=key(Amount | None, "Median number of plans on the list."),
    list_plans=key(Amount | None, "Median number of plans of a group."),
    memory_mape=key(Amount | None, "Mean absolute error of the memory."),
    memory_median_ape=key(Amount | None, "Median."),
    memory_bias=key(Number | None, "Mean of log(predicted / measured) of the memory."),
    oom_recall=key(Share | None, "Of the failures that memory explains: predicted not to fit."),
    oom_false_alarm=key(Share | None, "Of the runs that succeeded: predicted not to fit."),
    failures=key(Count, "Failed runs."),
    failures_apart=key(dict[str, Count], "Failures that memory does not explain, by reason."),
    parameters_fitted=key(Count, "Fitted constants that the predictions use."),
    without_default=key(Share | None, "Share of the scored rows that state everything."),
    defaults=key(dict[str, Count], "Fact -> scored rows that do not state it."),
)

PaleoFigures = record(
    "PaleoFigures",
    "The same rows by the preset `paleo`.",
    scored=Count,
    mape=Amount | None,
    median_ape=Amount | None,
    p90_ape=Amount | None,
    bias=Number | None,
    skill=Number | None,
    kendall_tau=Number | None,
    pair_accuracy=Share | None,
    regret_top1_mean=Amount | None,
    regret_top1_max=Amount | None,
    regret_top3_mean=Amount | None,
)

WorstEntry = record(
    "WorstEntry",
    "A row that is predicted badly.",
    line=key(int, "In the file.", ge=2),
    what=key(str, "What was timed."),
    predicted_s=Seconds,
    measured_s=Seconds,
    ratio=key(Number, "predicted / measured."),
    label=key(str, "What tells the row from others."),
)

RefusedCell = record(
    "RefusedCell",
    "A cell that is not what its column says, or a line with more cells than the header.",
    line=key(int, "In the file.", ge=1),
    column=key(int, "Where the cell begins.", ge=1),
    message=str,
)

PartFigures = record(
    "PartFigures",
    "Figures of the rows with one text in a column.",
    Figures,
    column=str,
    value=key(str, "Empty for rows that do not state it."),
    paleo=PaleoFigures,
)

FileFigures = record(
    "FileFigures",
    "Figures of one file.",
    Figures,
    file=key(str, "As it was named."),
    kind=key(str, "What its rows are."),
    paleo=PaleoFigures,
    error_bars_in_sample=key(bool, "Whether the error bars were fitted to this very file."),
    refused=key(
        several(RefusedCell), "Cells that are not what their columns say; their rows are counted in `skipped`."
    ),
    remarks=key(
        list[str], "Columns that are not read though their names are near; units that all rows seem to have wrong."
    ),
    fitted=key(list[str], "The fitted constants, a device's own with its name before them."),
    worst=key(several(WorstEntry), "The largest ratios."),
    by=key(several(PartFigures) | None, "Parts, where a column was asked for.", default=None),
)

ValidationDocument = record(
    "ValidationDocument",
    "Answer of `planner validate --json`.",
    schema_version=Literal[1],
    by=key(str | None, "The column that parts the files."),
    files=several(FileFigures),
)

# -- planner measure, planner detect -----------------------------------------------------------------------------------------

MeasuredRow = record(
    "MeasuredRow",
    "One row of the table of measurements.",
    line=key(Count, "In the table, from 1."),
    kernel=str,
    pass_=key(str | None, "null for kernels without passes.", alias="pass"),
    precision=str,
    shape=key(str, "Columns and values."),
    measured_s=key(Seconds, "Median."),
    spread=key(Amount, "Range of the middle half of the samples over the median."),
    predicted_s=key(Seconds | None, "null where it cannot be predicted."),
    ratio=key(Amount | None, "predicted / measured."),
    not_predicted=key(str | None, "Why not."),
)

MeasuredKernel = record(
    "MeasuredKernel",
    "All rows of one kind of kernel; errors are shares of what was measured.",
    kernel=str,
    rows=Count,
    scored=Count,
    mape=key(Amount | None, "Mean absolute error."),
    median_ape=key(Amount | None, "Median."),
    bias=key(Number | None, "Mean of log(predicted / measured)."),
)

MeasureDocument = record(
    "MeasureDocument",
    "Measured times of kernels and collectives, and the predictions.",
    schema_version=Literal[1],
    file=key(str, "The table that was written."),
    device=key(str, "What the rows are predicted for."),
    machine=key(str, "What was measured, as it calls itself."),
    software=str,
    stopped=key(bool, "By Ctrl-C: the rows until then."),
    skipped=key(dict[str, Count], "Reason -> cases that were not measured."),
    kernels=several(MeasuredKernel),
    rows=several(MeasuredRow),
)

DetectedValue = record(
    "DetectedValue",
    "One value of the files.",
    part=key(str, "A device, or a level of links."),
    key=str,
    value=key(str, "With its unit, as the file has it."),
    known=key(bool, "False: an assumption."),
    source=key(str, "Where it comes from, or why it is assumed."),
)

DetectDocument = record(
    "DetectDocument",
    "What was found out about a machine.",
    schema_version=Literal[1],
    name=key(str, "Of the cluster."),
    description=str,
    values=several(DetectedValue),
    remarks=key(list[str], "Programs that failed or hang, what was left out."),
    files=key(list[str], "Files that were written."),
)

# -- planner calibrate -------------------------------------------------------------------------------------------------------

CalibrationFigures = record(
    "CalibrationFigures",
    "Errors of some times, as shares of what was measured; null where there is none.",
    mape=key(Amount | None, "Mean absolute error."),
    median_ape=key(Amount | None, "Median."),
    p90_ape=key(Amount | None, "90th percentile."),
    bias=key(Number | None, "Mean of log(predicted / measured)."),
)

_BeforeAfter = record(
    "_BeforeAfter",
    None,
    times=key(Count, "Measured times; a row of kernels may have several."),
    before=key(CalibrationFigures, "With the bundled constants."),
    after=key(CalibrationFigures, "With the constants of the calibration."),
    left_out=key(CalibrationFigures | None, "Of a fit to the other folds; null without cross-validation."),
)

FileErrors = record(
    "FileErrors",
    "One file.",
    _BeforeAfter,
    file=str,
    kind=str,
    rows=key(Count, "Rows in all: `used` plus the sum of `skipped`."),
    used=Count,
    skipped=key(dict[str, Count], "Reason -> rows that were left out for it."),
)

KindErrors = record(
    "KindErrors",
    "One kind of table.",
    _BeforeAfter,
    kind=str,
)

AllErrors = record(
    "AllErrors",
    "All times.",
    _BeforeAfter,
    name=str,
)

ConstantResult = record(
    "ConstantResult",
    "One constant.",
    name=str,
    value=key(Number, "Factor on the bundled value."),
    log_sd=key(Amount, "Standard deviation of its logarithm after the fit."),
    prior_log_sd=Amount,
    determined=key(bool, "Whether the measurements said more than the prior."),
    reason=key(str | None, "Why it is not determined."),
)

CalibrationResult = record(
    "CalibrationResult",
    "Answer of `planner calibrate`.",
    schema_version=Literal[1],
    calibration=key(CalibrationFile, "What -o writes."),
    fell_back=key(str | None, "Why the bundled constants were kept; null where a fit was made."),
    doubt=key(
        str | None, "What the rows have not in common, or too few of to say how others are predicted; null: nothing."
    ),
    configurations=key(Count, "Distinct ones; repeats count once."),
    folds=key(Count, "Of the cross-validation; 0: there was none."),
    grouped_by=Literal["network", "dataset_group", "rows"],
    constants=several(ConstantResult),
    files=several(FileErrors),
    kinds=several(KindErrors),
    all=AllErrors,
)

# -- planner place -----------------------------------------------------------------------------------------------------------


class _Placed(BaseModel):
    """Part of an answer of `planner place`: keys that are not declared are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


NodeId = int | str
_ASSUMED = "Operators of another program's network that are not known and are taken to cost nothing (`--assume-free`)."

_Claim = record(
    "_Claim",
    "What every answer claims.",
    _Placed,
    schema_version=Literal[1],
    command=Literal["place"],
    workload=key(str, "File, as given."),
    objective=key(Amount, "What is minimised; its unit is that of `objective_name`."),
    bound=key(Amount, "No placement of the kind that was asked for is below it."),
    gap=key(Amount, "(objective - bound) / objective."),
    proven_optimal=key(bool, "Whether the gap is 0, but for rounding (1e-6)."),
    proof=key(str, "Which argument proved the bound."),
    method=key(str, "What found the placement."),
    stopped=key(
        str | None, "Why the search ended without a proof: time limit, interrupted, or in words what was too large."
    ),
    wall_s=key(Amount, "Seconds of the search."),
)

PlaceDevice = record(
    "PlaceDevice",
    "One device; times are in the workload's unit.",
    _Placed,
    name=key(str, "acc1, acc2, ... or cpu1, ..."),
    num_nodes=Count,
    compute=Amount,
    communication=key(Amount, "Between the accelerator and host memory; 0 on CPUs."),
    load=key(Amount, "compute + communication."),
    type=key(str | None, "Kind of accelerator, where the workload has deviceTypes.", default=None),
    memory_bytes=Amount,
    memory_capacity_bytes=key(Amount | None, "null on CPUs, which have no limit."),
    nodes=key(list[NodeId], "Operators, by id."),
)

PlaceDocument = record(
    "PlaceDocument",
    "Answer of `planner place --json` about an operator graph.",
    _Claim,
    objective_name=key(Literal["throughput"], "throughput: the largest load of a device."),
    contiguity=key(
        Literal["chain", "convex", "none"],
        "chain: devices follow each other, and each reads only from those before it; convex: no path leaves a device and comes back.",
    ),
    num_accelerators=Count,
    num_cpus=Count,
    memory_bytes=key(Amount, "Of an accelerator."),
    speedup_over_one_device=key(Amount | None, "Memory aside; null where no single device runs everything."),
    speedup_over_contiguous=key(Amount | None, "null where the best contiguous placement was asked for."),
    assignment=key(dict[str, str], "Operator to device."),
    devices=several(PlaceDevice),
    assumed_free=key(list[str], _ASSUMED),
    seed=Count,
)

PlaceSubgraph = record(
    "PlaceSubgraph",
    "One call of an accelerator; times are in the workload's unit.",
    _Placed,
    device=key(str, "acc1, acc2, ..."),
    subgraph=key(int, "Position among the accelerator's subgraphs.", ge=1),
    start=Amount,
    finish=key(Amount, "start + compute + communication: when all its outputs are there."),
    compute=Amount,
    communication=key(Amount, "Of what crosses its border, once per output."),
    num_nodes=Count,
    memory_bytes=Amount,
    nodes=key(list[NodeId], "Operators, by id."),
)

LatencyDocument = record(
    "LatencyDocument",
    "Answer of `planner place --objective latency --json`.",
    _Claim,
    objective_name=key(Literal["latency"], "When the last output of one sample is there."),
    num_accelerators=Count,
    num_subgraphs=key(int, "Of an accelerator, at most.", ge=1),
    memory_bytes=key(Amount, "Of an accelerator, for all its subgraphs together."),
    speedup_over_one_device=key(
        Amount | None, "One accelerator, memory aside, or CPUs alone where operators are not supported."
    ),
    assignment=key(dict[str, str], "Operator to device; cpu1 stands for all CPUs."),
    subgraphs=several(PlaceSubgraph),
    cpu_nodes=key(list[NodeId], "Operators on CPUs, by id."),
    available=key(dict[str, Amount], "Operator to the time when its output is there."),
    assumed_free=key(list[str], _ASSUMED),
    seed=Count,
)

PiperStageEntry = record(
    "PiperStageEntry",
    "One pipeline stage.",
    _Placed,
    data_parallel=key(int, "Copies.", ge=1),
    tensor_parallel=key(int, "Devices of a copy.", ge=1),
    nodes=key(list[NodeId], "Operators, by id."),
    ways=key(list[int], "Per operator: position in the workload's list of ways for `tensor_parallel`."),
    way_names=key(list[str], "Per operator: the way's name."),
    in_flight=key(int, "Micro-batches whose activations a device keeps.", ge=1),
    time_s=key(Amount, "Per micro-batch."),
    memory_bytes=key(Amount, "Per device."),
)

PiperDocument = record(
    "PiperDocument",
    "Answer of `planner place --json` about a workload of Piper's format.",
    _Claim,
    objective_name=key(Literal["piper"], "Seconds per micro-batch of the slowest stage."),
    num_devices=key(int, ge=1),
    used_devices=key(int, ge=1),
    memory_bytes=key(Amount, "Of a device."),
    bandwidth_bytes_per_s=Amount,
    num_micro_batches=key(int, "Of a batch.", ge=1),
    assignment=key(dict[str, int], "Operator to stage, from 1."),
    stages=key(several(PiperStageEntry), "In the order of the data."),
)

AnyPlacement = any_of(
    "AnyPlacement",
    "Answer of `planner place --json`: by `objective_name` for throughput, for latency or of a workload of Piper's format.",
    [PlaceDocument, LatencyDocument, PiperDocument],
)

# -- planner size ------------------------------------------------------------------------------------------------------------

GoalEntry = record(
    "GoalEntry",
    "What was asked for.",
    tokens=Number | None,
    samples=Number | None,
    deadline_s=Seconds | None,
    budget=key(Number | None, "In USD."),
    goodput=key(Number | None, "Share of the time in which steps are made, where it was stated."),
    failures=key(str | None, "Name of the rates of failures that it follows from otherwise.", default=None),
)

TrialEntry = record(
    "TrialEntry",
    "One search, and the whole training with its best plan.",
    cluster=str,
    allowed_gpus=key(int, "GPUs that the plan might use.", ge=1),
    gpus=key(int | None, "GPUs that are paid for: whole nodes, or single GPUs inside one; null without a plan."),
    time_s=key(Seconds | None, "Of the training."),
    time_low_s=key(
        Seconds | None,
        "The training takes between this and `time_high_s` with a chance of 80 %; null: no error model.",
        default=None,
    ),
    time_high_s=key(Seconds | None, default=None),
    money=key(Number | None, "Of the training, in USD; null where no price is stated."),
    energy_j=key(Number | None, "Of the training; null where no power is stated."),
    meets=key(bool, "Whether it ends by the deadline, within the budget."),
    chance=key(Number | None, "Of that; null: no error model.", default=None),
    meets_90=key(
        bool | None,
        "Whether it does with a chance of 90 %: at the upper end of the interval; null: no error model.",
        default=None,
    ),
    spare_gpus=key(int | None, "GPUs of hosts in reserve, paid for besides.", default=None),
    useful_share=key(
        Number | None, "Share of the time that makes progress; null where a goodput was stated.", default=None
    ),
    interruptions=key(Number | None, "Unexpected ones that are expected in all.", default=None),
    checkpoint_interval_s=key(Number | None, "Work between checkpoints; null where nothing fails.", default=None),
    checkpoint_bytes=key(Number | None, "Of one checkpoint.", default=None),
    lost_to=key(
        dict[str, Number] | None,
        "Shares of the time: checkpoints, restarts, work_done_again, waiting_for_hosts, planned.",
        default=None,
    ),
    costs_by_cause=key(
        dict[str, Number] | None, "Cause -> share of the time that would be saved if it never came.", default=None
    ),
    steps=int | None,
    objective=key(str, "What the search made least: step_time, gpu_hours or energy."),
    batch=int | None,
    seq=int | None,
    status=key(str, "As in the rows of `planner sweep`."),
    reason=str | None,
    workers=key(int | None, "GPUs that the plan uses."),
    family=str | None,
    plan=key(str | None, "In words; --export writes that of the fewest GPUs."),
    step_time_s=Seconds | None,
    tokens_per_s=Number | None,
    mfu=Number | None,
    memory_bytes_per_gpu=Number | None,
    proven_optimal=key(bool | None, "Of the objective, on as many GPUs at most."),
    gap=Number | None,
)

SizeAnswer = record(
    "SizeAnswer",
    "A trial that is the answer to a wish.",
    TrialEntry,
    binds=key(str, "What keeps the answer from being smaller, in words."),
    proven_least_gpus=key(bool, "Whether no smaller number of whole nodes meets the goal."),
)

ClusterEntry = record(
    "ClusterEntry",
    "Everything about one cluster; the answers are null where nothing that was tried meets the goal.",
    cluster=str,
    node=key(int, "GPUs of a node.", ge=1),
    most_gpus=int,
    price_per_hour=key(Number | None, "Of a GPU, in USD."),
    least_money=key(
        Number | None,
        "No plan on any number of GPUs up to the most costs less, whatever it takes; null where that is not known.",
    ),
    least_gpus=SizeAnswer | None,
    least_gpus_90=key(SizeAnswer | None, "That meet the goal with a chance of 90 %.", default=None),
    cheapest=SizeAnswer | None,
    least_energy=key(SizeAnswer | None, "Least energy of those tried."),
    thriftiest=key(SizeAnswer | None, "The old name of `least_energy`, for one release."),
    tried=several(TrialEntry),
)

SizeDocument = record(
    "SizeDocument",
    "Answer of `planner size --json`.",
    schema_version=Literal[1],
    model=str,
    goal=GoalEntry,
    command_line=str,
    interrupted=bool,
    least_gpus=key(SizeAnswer | None, "Of all clusters; null where nothing meets the goal."),
    least_gpus_90=key(
        SizeAnswer | None,
        "Fewest GPUs that meet the goal with a chance of 90 %; null where none that was tried does.",
        default=None,
    ),
    cheapest=key(SizeAnswer | None, "null also where clusters without a price are compared."),
    least_energy=SizeAnswer | None,
    thriftiest=key(SizeAnswer | None, "The old name of `least_energy`, for one release."),
    nearest=key(TrialEntry | None, "The nearest miss, where nothing meets the goal."),
    clusters=several(ClusterEntry),
)

# -- planner sweep -----------------------------------------------------------------------------------------------------------

SweepRow = record(
    "SweepRow",
    "One cell of the grid: a question and its best plan, or why there is none. `tp` to `recompute` are null for splits per layer.",
    model=str,
    cluster=str,
    device=key(str | None, "null where there is no answer."),
    gpus=key(int, "Workers at most.", ge=1),
    batch=key(int | None, "Samples per step, all workers together."),
    seq=key(int | None, "Positions of a sample."),
    status=key(
        Literal["ok", "no_plan", "limit", "refused", "failed"],
        "ok; no_plan: nothing fits; limit: the time limit came before a plan; refused: the question contradicts itself; "
        "failed: a process died or the planner has a defect, and the next run tries again.",
    ),
    reason=key(str | None, "Why there is no plan, with the nearest miss."),
    workers=key(int | None, "GPUs that the plan uses."),
    family=str | None,
    plan=key(str | None, "In words."),
    step_time_s=Seconds | None,
    **INTERVAL,
    throughput_samples_per_s=Number | None,
    tokens_per_s=Number | None,
    mfu=Number | None,
    memory_bytes_per_gpu=Number | None,
    exposed_communication_s=Seconds | None,
    **{
        name: key(Number | None, f"What a step costs, in {cost.unit}; null where it is not known.")
        for name, cost in with_figures().items()
    },
    objective=str,
    proven_optimal=bool | None,
    gap=key(Number | None, "(best - bound) / best, of the objective."),
    tp=int | None,
    cp=int | None,
    ep=int | None,
    etp=int | None,
    pp=int | None,
    vpp=int | None,
    dp_replicate=int | None,
    dp_shard=int | None,
    zero_stage=int | None,
    micro_batch=int | None,
    num_micro_batches=int | None,
    schedule=str | None,
    recompute=str | None,
)

SweepDocument = record(
    "SweepDocument",
    "Answer of `planner sweep --json`.",
    schema_version=Literal[1],
    cells=key(int, "Of the grid.", ge=1),
    interrupted=key(bool, "Whether Ctrl-C left some of them out."),
    command_line=str,
    rows=key(several(SweepRow), "In the order of the grid: cluster, batch, length, GPUs."),
)


# Replicas of a plan.
_SERVERS: dict[str, tuple[Any, str]] = {
    "gpus": (int, "GPUs that are paid for, with the spare ones: whole nodes, or single GPUs inside one."),
    "replicas": (int, "As many as these GPUs hold."),
    "replicas_needed": (int, "That keep the limits at the highest rate."),
    "prefill_workers": (int, "That only read prompts, with those in reserve; 0: replicas read their own."),
    "money_per_month": (Number | None, "In USD, of 730 hours; null where no price is stated."),
    "fleet_money_per_million_output_tokens": (Number | None, "In USD, of all replicas, at the mean rate."),
    "most_rate_per_s": (Number, "Requests per second at which all replicas would reach a limit."),
    "binds": (
        list[str],
        "Figures of the plan that would miss their limits with one replica fewer than needed; `load`: the share of what it can serve.",
    ),
    "replicas_by_hour": (list[int] | None, "That each hour needs, with the spare ones; null: the rate stays."),
    "gpu_hours_share": (Number | None, "GPU-hours of these over those of all replicas."),
    "cost": (cost_model("serving"), "The plan with the replicas that are needed, at the highest rate."),
}

ServersEntry = record(
    "ServersEntry", "Replicas of a plan.", **{name: key(kind, doc) for name, (kind, doc) in _SERVERS.items()}
)

FleetEntry = record(
    "FleetEntry",
    "Servers of one cluster; where there are none, everything but the cluster and the reason is null.",
    cluster=str,
    reason=key(str | None, "Why there are none; null: there are."),
    **{name: key(kind | None, doc, default=None) for name, (kind, doc) in _SERVERS.items()},
    surer=key(
        ServersEntry | None,
        "The fewest GPUs that keep the limits with a chance of 90 %, where the first do not.",
        default=None,
    ),
)

FleetDocument = record(
    "FleetDocument",
    "Answer of `planner size --json` with --rate, --requests or --demand.",
    schema_version=Literal[1],
    model=str,
    command_line=str,
    spares=key(int, "Replicas, or groups of them that share experts, in reserve.", ge=0),
    hours=key(list[float] | None, "Requests per second of every hour; null: the rate stays."),
    requests=key(ServingHead | None, "What is served; null where nothing is."),
    best=key(
        FleetEntry | None,
        "The cheapest, or where a price is missing the fewest GPUs; null: no cluster serves the demand.",
    ),
    clusters=key(several(FleetEntry), "In the order of the question."),
)


_ONE_PLAN = {
    "summary": key(str, "The plan in words."),
    "workers": key(int, "GPUs in use.", ge=1),
    "step_time_s": key(Seconds, "Time of one step; of serving, the time per token."),
    "memory_bytes_per_gpu": key(Amount, "Peak memory of the fullest GPU."),
    "memory_capacity_bytes": key(Amount, "Memory that it may be predicted to need."),
    "fits": bool,
}

OnePlan = record("OnePlan", "Figures of a plan.", **_ONE_PLAN)

LegalPlan = record(
    "LegalPlan",
    "The best plan under a change that makes the settings legal.",
    change=key(str, "The change, as an option."),
    **_ONE_PLAN,
)

PlanStep = record(
    "PlanStep",
    "One change on the way to the first plan, and the plan after it.",
    settings=key(list[str], "What is changed; several where none of them could change alone.", min_length=1),
    before=key(list[str], "Of each setting; empty where the text would be long."),
    after=list[str],
    change_s=key(Number, "Of `step_time_s`; these add up to the difference between `first` and `plan`."),
    change_bytes=key(Number, "Of `memory_bytes_per_gpu`; these add up, too."),
    **_ONE_PLAN,
)

WhyNotDocument = record(
    "WhyNotDocument",
    "Answer of `planner why-not --json`: why a plan is not the first.",
    schema_version=Literal[1],
    model=str,
    gpus=key(int, "Workers that there are.", ge=1),
    objective=key(str | None, "What plans are compared by; null without a plan."),
    legal=bool,
    broken=key(list[str], "Every rule that the plan breaks."),
    nearest_legal=key(
        several(LegalPlan), "Of an illegal plan: the nearest values of one setting; the best plan first."
    ),
    fits=key(bool, "Whether the plan is legal, fits and keeps the limits."),
    misfit=key(str | None, "Why no plan with these settings fits, and what would; null where one does."),
    filled_in=key(bool, "Whether a search chose what was left open: the best plan with these settings."),
    plan=key(OnePlan | None, "The plan; of an illegal one the first of `nearest_legal`; null where there is none."),
    first=key(OnePlan | None, "What a search with nothing fixed names first; null where nothing fits."),
    no_plan=key(str | None, "Why nothing fits."),
    is_first=key(bool, "Whether the plan is the first, or does the same."),
    relative_score=key(Number | None, "What plans are compared by, over that of the first plan; above 1 is worse."),
    better_plans=key(
        int | None, "Plans that fit and are better; at least so many where `better_plans_counted` is false.", ge=0
    ),
    better_plans_counted=key(bool, "Whether all of them were counted."),
    better_plans_of=key(str | None, "What counts as a plan."),
    steps=key(several(PlanStep), "From `plan` to `first`, one setting at a time."),
    why=key(list[str], "In sentences: what the first plan saves and pays."),
    verdict=key(str, "The answer in one sentence."),
    notes=key(several(NoteEntry), "What there is to say about the plan."),
    warnings=key(list[str], "What no longer holds of a plan file."),
)
