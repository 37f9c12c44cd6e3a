"""The kinds of tables of measurements: which columns each needs, and who predicts its rows."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from planner.core.errors import FileProblem, InputFileError
from planner.measurements.columns import COLUMNS
from planner.measurements.outcomes import DEFAULT, Outcome, Preset
from planner.measurements.tables import Row, Table, table_problem

Predictor = Callable[[Sequence[Row], Preset], list[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of table.

    Attributes
    ----------
    name : str
    doc : str
        What a row is, in words.
    columns : tuple of tuples of str
        Columns that a table needs; of each tuple, one.
    predicts : str
        ``module.function`` of this package, which takes (rows, preset) and returns outcomes; imported when it is needed.
    example : str
        A row of the template, with the columns of its header.
    named : tuple of tuples of str
        What a table needs where it names its networks in place of their widths, looked at if it is of no kind otherwise.
    """

    name: str
    doc: str
    columns: tuple[tuple[str, ...], ...]
    predicts: str
    example: tuple[tuple[str, str], ...]
    named: tuple[tuple[str, ...], ...] = ()

    def missing(self, columns: Collection[str]) -> list[str]:
        """Columns that a table lacks, alternatives joined by "or"."""
        return [" or ".join(names) for names in self.columns if not any(name in columns for name in names)]

    def predictor(self) -> Predictor:
        """The function that predicts rows."""
        module, _, name = self.predicts.partition(".")
        found: Predictor = getattr(importlib.import_module(f"planner.measurements.{module}"), name)
        return found


def _example(text: str) -> tuple[tuple[str, str], ...]:
    """``column=value`` pairs, separated by blanks."""
    return tuple((name, value) for name, _, value in (pair.partition("=") for pair in text.split()))


# What every run of a transformer states.
_OF_A_RUN = (
    ("device", "device_file"),
    ("gpus", "dp", "nodes"),
    ("global_batch", "micro_batch", "batch_per_gpu"),
    ("step_time_ms", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "oom"),
)

# The first kind whose columns are all there is the table's; where rows of a table are of two kinds, `predict_table` tells them apart.
KINDS: tuple[Kind, ...] = (
    Kind(
        name="measured",
        doc="kernels and collectives of all kinds, as planner measure writes them",
        columns=(("kernel",), ("device", "device_file"), ("time_ms",)),
        predicts="kernels.predict_measured",
        example=_example(
            "kernel=attention device=a100-80gb precision=bf16 pass_=forward batch=4 heads=16 head_dim=128 seq=2048 causal=yes time_ms=0.6"
        ),
    ),
    Kind(
        name="convolution",
        doc="a convolution: forward and gradients, or one pass",
        columns=(
            ("n",),
            ("c",),
            ("h",),
            ("w",),
            ("k",),
            ("r",),
            ("s",),
            ("device",),
            ("fwd_ms", "bwd_input_ms", "bwd_param_ms", "time_ms"),
        ),
        predicts="kernels.predict_convolutions",
        example=_example(
            "device=p100 precision=fp32 n=16 c=64 h=56 w=56 k=128 r=3 s=3 pad_h=1 pad_w=1 stride_h=1 stride_w=1 "
            "fwd_ms=1.2 bwd_input_ms=1.3 bwd_param_ms=1.4"
        ),
    ),
    Kind(
        name="gemm",
        doc="a matrix product of m x k by k x n",
        columns=(("m",), ("n",), ("k",), ("device",), ("time_ms",)),
        predicts="kernels.predict_products",
        example=_example("device=p100 precision=fp32 m=1024 n=512 k=2048 time_ms=0.3"),
    ),
    Kind(
        name="recurrent",
        doc="a recurrent layer over a sequence",
        columns=(("cell",), ("hidden",), ("batch",), ("timesteps",), ("device",), ("fwd_ms",)),
        predicts="kernels.predict_recurrent",
        example=_example(
            "device=p100 precision=fp32 cell=LSTM hidden=1024 batch=32 timesteps=25 fwd_ms=5.1 bwd_input_ms=5.0 bwd_weight_ms=1.2"
        ),
    ),
    Kind(
        name="operator",
        doc="an operator of a network as PyTorch prints it",
        columns=(("op",), ("batch",), ("activation_bytes",), ("fwd_ms",)),
        predicts="operators.predict",
        example=_example(
            "device=v100-16gb net=vgg16 op=ReLU(inplace) batch=128 activation_bytes=1644167168 fwd_ms=2.1 bwd_ms=3.1"
        ),
    ),
    Kind(
        name="matmul-peak",
        doc="the best matrix throughput of a device",
        columns=(("device",), ("precision",), ("mamf_tflops",)),
        predicts="kernels.predict_peaks",
        example=_example("device=a100-80gb precision=bf16 m=1024 n=10240 k=5120 mamf_tflops=271.2"),
    ),
    Kind(
        name="collective",
        doc="a collective operation of some ranks",
        columns=(
            ("device",),
            ("ranks",),
            ("bytes",),
            ("time_us", "time_ms", "busbw_GBps", "algbw_GBps"),
        ),
        predicts="collective_rows.predict",
        example=_example("collective=all_reduce device=h100-sxm nodes=2 ranks=16 bytes=268435456 time_us=1500"),
    ),
    Kind(
        name="dispatch",
        doc="the exchange of tokens between ranks that share experts, out to the experts and back",
        columns=(("device",), ("ranks",), ("tokens_per_rank",), ("hidden",), ("top_k",), ("dispatch_us", "combine_us")),
        predicts="collective_rows.predict_dispatches",
        example=_example(
            "device=h100-sxm nodes=2 ranks=16 tokens_per_rank=4096 hidden=7168 top_k=8 experts=256 sms=24 dispatch_us=1400 combine_us=2600"
        ),
    ),
    Kind(
        name="deployment",
        doc="a served network: time to the first token and time per token of so many requests in flight",
        columns=(
            ("model",),
            ("device", "device_file"),
            ("prompt",),
            ("output",),
            ("concurrency",),
            ("ttft_ms", "tpot_ms"),
        ),
        predicts="deployments.predict",
        example=_example(
            "model=llama3-70b precision=fp8 device=h100-sxm gpus_per_node=8 gpus=4 framework=vllm tp=4 prompt=1024 output=256 "
            "concurrency=64 ttft_ms=390 tpot_ms=27.5"
        ),
    ),
    Kind(
        name="plan",
        doc="a training run of a transformer: degrees, batches, step time, memory, or a failure",
        columns=(
            ("hidden",),
            ("layers",),
            ("heads",),
            *_OF_A_RUN,
        ),
        named=(("model",), *_OF_A_RUN),
        predicts="plans.predict_training",
        example=_example(
            "model=GPT style=gpt hidden=2048 layers=24 heads=16 ffn=8192 vocab=50304 seq=2048 precision=bf16 device=a100-80gb "
            "gpus_per_node=8 "
            "gpus=16 framework=megatron-lm global_batch=128 micro_batch=4 tp=2 pp=1 dp=8 zero_stage=1 recompute=none flash_attention=yes "
            "step_time_ms=1450 memory_gib=41.2 oom=no"
        ),
    ),
    Kind(
        name="network",
        doc="a training run of a network for images (speech, translation, ...), data parallel or on one device",
        columns=(
            ("model",),
            ("device",),
            ("batch_per_gpu", "global_batch"),
            ("step_time_ms", "samples_per_s", "forward_ms", "frames_per_s", "audio_samples_per_s"),
        ),
        # Behind those of plans, which count tokens as a rule.
        named=(
            ("model",),
            ("device",),
            ("batch_per_gpu", "global_batch"),
            ("tokens_per_s", "tokens_per_s_per_gpu"),
        ),
        predicts="plans.predict_training",
        example=_example(
            "model=resnet50 precision=fp16 device=v100-16gb gpus_per_node=8 gpus=8 batch_per_gpu=128 step_time_ms=160"
        ),
    ),
    Kind(
        name="layer-log",
        doc="a layer of a bundled network, by its name",
        columns=(("net",), ("layer",), ("pass_",), ("time_ms",), ("device",)),
        predicts="kernels.predict_layers",
        example=_example("device=titan-x net=alexnet layer=conv2 pass_=forward n=128 time_ms=11.5"),
    ),
)


def template(kind: Kind) -> str:
    """Header and an example row of a kind, as CSV."""
    return ",".join(name for name, _ in kind.example) + "\n" + ",".join(value for _, value in kind.example) + "\n"


def recognise(table: Table) -> Kind:
    """The kind of a table, by its columns.

    Raises
    ------
    InputFileError
        It has the columns of none; the message names what the nearest lacks, and its template.
    """
    lacking = {kind.name: kind.missing(table.columns) for kind in KINDS}
    found = next((kind for kind in KINDS if not lacking[kind.name]), None)
    if found is None:
        names = set(table.columns)
        found = next((kind for kind in KINDS if kind.named and all(names & set(group) for group in kind.named)), None)
    if found is not None:
        return found
    lacked = {name: len(names) for name, names in lacking.items()}
    nearest = min(KINDS, key=lambda kind: (lacked[kind.name] / len(kind.columns), lacked[kind.name]))
    if lacked[nearest.name] == len(nearest.columns):
        kinds = ", ".join(kind.name for kind in KINDS)
        usual = template(next(kind for kind in KINDS if kind.name == "plan")).splitlines()[0]
        raise table_problem(
            table.path,
            f"is no table of measurements that is known; missing columns: all that a kind needs. Kinds: {kinds}. Template of "
            f"training runs: {usual} (planner validate --template KIND; docs/measurements.md)",
            1,
        )
    words = f"is no table of measurements that is known. Nearest kind: '{nearest.name}' ({nearest.doc})"
    raise _lacks(table, words, nearest, lacking[nearest.name])


def _lacks(table: Table, words: str, kind: Kind, lacking: Sequence[str]) -> InputFileError:
    """Names the columns that a table lacks, what they may be called in it, and the template."""
    others = [name for name in table.columns if name not in COLUMNS]
    missing = ", ".join(
        names + next(filter(None, (_near(name, others) for name in names.split(" or "))), "") for names in lacking
    )
    header = template(kind).splitlines()[0]
    return table_problem(
        table.path,
        f"{words}; missing columns: {missing}. Template: {header} (planner validate --template {kind.name}; docs/measurements.md)",
        1,
    )


# What only tables of transformers with their degrees have.
_SHAPE = frozenset((("hidden",), ("layers",), ("heads",)))
_OF_PLANS = frozenset(("hidden", "layers", "heads", "tp", "pp", "vpp", "zero_stage", "recompute"))


def check_columns(table: Table, kind: Kind, outcomes: Sequence[Outcome]) -> None:
    """Refuse a table of which no row can be scored for want of a column; single rows that lack something are counted.

    A shape that no column states may also be a name that is not known: it is missing in tables of transformers only.

    Raises
    ------
    InputFileError
        Names the columns, and the template.
    """
    if any(outcome.is_scored for outcome in outcomes):
        return
    needed = dict.fromkeys(names for outcome in outcomes for names in outcome.needs)
    of_plans = kind.predicts == "plans.predict_training" and bool(_OF_PLANS & set(table.columns))
    absent = [names for names in needed if not set(names) & set(table.columns) and (of_plans or names not in _SHAPE)]
    if not absent:
        return
    named = next(known for known in KINDS if known.name == "plan") if of_plans else kind
    words = f"has no row that can be scored. Kind: '{named.name}' ({named.doc})"
    raise _lacks(table, words, named, [" or ".join(names) for names in absent])


def _near(name: str, others: Sequence[str]) -> str:
    """What a missing column may be called in a file, as the end of a phrase; empty where nothing is near."""
    near = difflib.get_close_matches(name, others, n=1, cutoff=0.7)
    return f" (the file has '{near[0]}')" if near else ""


# Rows predicted at a time: what a prediction needs on the way is let go of between them.
_ROWS_AT_A_TIME = 5_000


def predict_table(table: Table, preset: Preset = DEFAULT) -> tuple[Kind, list[Outcome]]:
    """Predict every row of a table.

    Raises
    ------
    InputFileError
        The table is of no known kind, has no rows, or lacks a column that every row needs.
    """
    kind, (outcomes,) = predict_by(table, (preset,))
    return kind, outcomes


def predict_by(
    table: Table, presets: Sequence[Preset], progress: Callable[[float], None] | None = None
) -> tuple[Kind, tuple[list[Outcome], ...]]:
    """The same by several cost models, for each the outcomes; what the cells of a row mean is found out once.

    ``progress`` takes the share that is done.

    Raises
    ------
    InputFileError
        As `predict_table`, by the first cost model.
    """
    kind = recognise(table)
    if not table.rows:
        raise InputFileError([FileProblem(path=table.path, message="has a header and no rows")])
    predict = kind.predictor()
    found: tuple[list[Outcome], ...] = tuple([] for _ in presets)
    for first in range(0, len(table.rows), _ROWS_AT_A_TIME):
        rows = table.rows[first : first + _ROWS_AT_A_TIME]
        for n, preset in enumerate(presets):
            if progress is not None:
                progress((first + len(rows) * n / len(presets)) / len(table.rows))
            found[n].extend(predict(rows, preset))
        for row in rows:
            row.meaning = None
    assert all(len(outcomes) == len(table.rows) for outcomes in found), "one outcome per row"
    check_columns(table, kind, found[0])
    return kind, found
