"""Published training runs of transformers as canonical rows: what their cells say, in the words of their authors."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import replace

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.machines import machine, put_attention
from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.shapes import (
    agrees,
    bundled_name,
    is_particular,
    says_mixture,
    style_of,
    widths_of,
    with_published_shape,
)
from benchmarks.datasets.sharding import offloads_optimizer, sharding_of
from benchmarks.datasets.words import (
    balance_of,
    dispatcher_of,
    gradient_bits,
    has_failed,
    keeps_no_master_weights,
    put_precision,
    recompute_of,
    schedule_of,
    yes_or_no,
)
from planner.core import quantities
from planner.files.naming.models import nearest_models
from planner.measurements import tables
from planner.measurements.hardware import machine_of, usual_node
from planner.measurements.networks import (
    TransformerShape,
    bundled_transformer,
    cut_network,
    shape_of,
    stack_of,
    transformer,
)
from planner.measurements.tables import short_name

__all__ = ["TIMES", "put_measured", "says_adapters", "transformer_run"]

TIMES = (
    "step_time_ms", "samples_per_s", "tokens_per_s_per_gpu", "tokens_per_s", "frames_per_s", "audio_samples_per_s",
)  # fmt: skip
_STACK = ("hidden", "layers", "heads")


def transformer_run(row: Row) -> Cells:
    """The canonical row.

    Raises
    ------
    Unreadable
        What is wrong with it.
    """
    cells = Cells()
    cells.texts(row, "dataset_group")
    cells.put("suspect", True if row.says("suspect") else None)
    put_measured(row, cells)
    put_precision(row, cells)
    cells.texts(row, "notes")
    cells.put("model_as_published", row.text("model") or row.text("net"))
    cells.put("gradient_bits", gradient_bits(row))
    narrow = keeps_no_master_weights(row)
    cells.put("master_weights", None if narrow is None else not narrow)
    put_attention(row, cells)
    cells.put("flash_attention", yes_or_no(row.text("flash_attention")))
    machine(row, cells)
    _network(row, cells)
    _plan(row, cells)
    return cells


# -- what was measured --------------------------------------------------------------------------------------------------------

# What the column ``unit`` may say of ``items_per_s``; the first that is found decides.
_UNITS = (
    (r"tok|word", "tokens_per_s"),
    (r"mel|frame", "frames_per_s"),
    (r"audio", "audio_samples_per_s"),
    (r"sampl|seq|sent|utter|image|img|example|item|clip|volume", "samples_per_s"),
)


def put_measured(row: Row, cells: Cells, usual: str = "") -> None:
    """Write times, throughputs, memory, or the failure; ``usual``: the column of a throughput that says no unit.

    Raises
    ------
    Unreadable
        There is nothing, or nobody knows what a throughput counts.
    """
    if has_failed(row):
        cells.put("oom", True)
        return
    cells.numbers(row, *TIMES)
    if row.positive("items_per_s") is not None:
        said = row.text("unit").lower()
        name = next((unit for pattern, unit in _UNITS if re.search(pattern, said)), "") if said else usual
        if not name and not any(column in cells for column in TIMES):
            raise Unreadable(
                f"items_per_s counts '{said}': how many a sample has is not known"
                if said
                else "items_per_s has no unit"
            )
        if name and name not in cells:
            cells.put(name, row.positive("items_per_s"))
    with contextlib.suppress(Unreadable):  # the time of the row is good without it
        cells.numbers(row, "memory_gib")


# -- the network --------------------------------------------------------------------------------------------------------------

_FAR = 3.0  # published numbers of weights differ by what is counted; those of dense networks with other parts by up to twice
_LABELS_BELOW = 1e5  # what is above is no number of billions
_PADDED = re.compile(r"padded\D*([0-9][0-9,]*)")
_RANK = 32  # of NVIDIA NeMo's LoRA recipes (NeMo Framework user guide, PEFT)
_ADAPTS_ALL = re.compile(
    r"\bpeft\b|transformers\b|hugging ?face|\btrl\b|llama.?factory|axolotl|\bswift\b|unsloth|xtuner"
)


def _network(row: Row, cells: Cells) -> None:
    name = bundled_name(row)
    adapters = says_adapters(row)
    if name is not None and adapters and not row.has(*_STACK) and not is_particular(bundled_transformer(name, None)):
        known = bundled_transformer(name, None)
        row = replace(row, cells={**row.cells, **stack_of(known), **widths_of(known)})
    cut = _cut_layers(row, name)
    if name is not None and (cut or not row.has(*_STACK) or _is_particular(row, name)):
        _put_bundled(row, cells, name)
        cells.put("cut_layers", cut)
    else:
        _put_shape(row, cells, name)
        adapters = adapters if adapters is not None else _counts_no_weight_gradients(row, cells)
    if adapters:
        cells.put("lora_rank", row.count("lora_rank") or _RANK)
        everywhere = _ADAPTS_ALL.search(f"{row.text('framework')} {row.text('source')}".lower())
        cells.put("lora_targets", "all" if everywhere else None)


def _put_bundled(row: Row, cells: Cells, name: str) -> None:
    """A bundled network, which what else the row says of its shape must not contradict."""
    stack = stack_of(bundled_transformer(name, None))
    for column in _STACK:
        if stack and not row.has(*_STACK) and row.has(column) and row.count(column) != int(stack[column]):
            raise Unreadable(
                f"column {column} is {row.count(column)}, the bundled network '{name}' has {stack[column]}"
            )
    cells.put("model", name)
    cells.counts(row, "seq")


def _is_particular(row: Row, name: str) -> bool:
    """Whether a row with a shape means a bundled network that a shape does not describe."""
    known = bundled_transformer(name, None)
    if row.count("experts") is not None or not is_particular(known) or not agrees(row, known):
        return False
    try:
        bundled_transformer(name, row.count("seq"))
    except tables.RowSkipped:
        return False  # images of another size: its blocks are those that the columns state
    return True


_CUT = re.compile(r"\bcut (?:down )?to (\d+) layers")


def _cut_layers(row: Row, name: str | None) -> int | None:
    """Layers of a row that says of a bundled mixture that it is cut to so many; None where it does not.

    Raises
    ------
    Unreadable
        Other cells contradict the network that is left.
    """
    said = _CUT.search(row.text("model").lower())
    if said is None or name is None or not is_particular(bundled_transformer(name, None)):
        return None
    graph = cut_network(bundled_transformer(name, None), int(said[1]))
    has_experts = [any(layer.kind == "moe" for layer in block) for block in graph.blocks.values()]
    params = [layer.params for layer in graph.layers if layer.kind == "moe"]
    facts = {
        **{column: int(text) for column, text in stack_of(graph).items()},
        "dense_layers": has_experts.count(False),
        "experts": max(known.experts for known in params),
        "top_k": max(known.top_k for known in params),
        "shared_expert_ffn": max(known.shared_width for known in params),
    }
    for column, value in facts.items():
        if row.has(column) and row.count(column) != value:
            raise Unreadable(f"column {column} is {row.text(column)}, '{name}' cut to {said[1]} layers has {value}")
    return int(said[1])


def _planner_row(cells: Cells) -> tables.Row:
    return tables.Row(line=1, cells=cells)


def _put_shape(row: Row, cells: Cells, name: str | None) -> None:
    hidden = row.count("hidden")
    if not row.has(*_STACK):
        row = with_published_shape(row)
        hidden = row.count("hidden")
    elif name is not None and style_of(row) == "llama":  # whose widths follow no rule
        row = _with_known_widths(row, name)
    cells.put("model", row.text("model") or row.text("net"))
    cells.put("style", style_of(row))
    heads = row.count("heads") or (_usual_heads(hidden) if hidden and row.has("layers", "model") else None)
    if not (hidden and row.count("layers") and heads):
        raise Unreadable(_unknown(row))
    cells.counts(row, "hidden", "layers", "kv_heads", "head_dim", "ffn", "experts", "top_k", "expert_ffn")
    cells.counts(row, "shared_expert_ffn", "dense_layers")
    cells.put("heads", heads)
    padded = _PADDED.search(row.text("vocab").lower())
    cells.put("vocab", int(padded[1].replace(",", "")) if padded else row.count("vocab"))
    cells.put("seq", _positions(row, cells.get("style", "")))
    cells.put("tied", yes_or_no(row.text("tied")))
    if "experts" not in cells and (says_mixture(row) or (row.count("ep") or 1) > 1):
        raise Unreadable(
            "a network with experts that no column counts (experts, top_k, expert_ffn), and no bundled one of its name and shape"
        )
    _check_count(row, cells)


def _unknown(row: Row) -> str:
    name = row.text("model")
    reason = "the model's shape is not stated (hidden, layers, heads) and no bundled model has its name"
    if name and not any(column in row.cells for column in (*_STACK, "params_b", "seq", "tp", "pp", "tokens_per_s")):
        reason = f"no bundled network has the name '{short_name(name)}' (planner list models)"
    return reason + nearest_models(name)


def _with_known_widths(row: Row, name: str) -> Row:
    """The row with the other widths of the bundled network that it names and whose hidden size, layers and heads it states."""
    known = bundled_transformer(name, None)
    if is_particular(known) or not agrees(row, known):
        return row
    taken = {column: text for column, text in widths_of(known).items() if not row.text(column)}
    return replace(row, cells={**row.cells, **taken})


def _usual_heads(hidden: int) -> int:
    """Heads of 64 features up to a width of 1,536, of 128 above it (Brown et al., arXiv:2005.14165, table 2).

    >>> _usual_heads(768), _usual_heads(4096), _usual_heads(100)
    (12, 32, 1)
    """
    width = 64 if hidden <= 1536 else 128
    return max(hidden // width, 1) if hidden % width == 0 else 1


_PATCH = 16  # of most networks for patches (Dosovitskiy et al., arXiv:2010.11929)


def _positions(row: Row, style: str) -> int | None:
    """The column ``seq``; of networks for patches it may be the side of the images: 16 x 16 pixels are a patch, and there is a class token.

    >>> [_positions(Row(line=2, cells={"seq": text}), "vit") for text in ("224", "384", "197", "196", "577", "256")]
    [197, 577, 197, 196, 577, 256]
    """
    seq = row.count("seq")
    is_side = seq is not None and style == "vit" and seq % _PATCH == 0 and math.isqrt(seq) ** 2 != seq
    return (seq // _PATCH) ** 2 + 1 if seq is not None and is_side else seq


def _check_count(row: Row, cells: Cells) -> None:
    """Use the published number of parameters: to tell whether the head shares the embedding, and mixtures that state one expert only.

    The number decides about the head for Llama and Nemotron only, whose members differ; it must have two digits, since "7" is a name.

    Raises
    ------
    Unreadable
        Column ``params_b`` is over three times what the widths have.
    """
    billions = row.positive("params_b")
    if billions is None:
        return
    shape = replace(_shape(cells), seq=1, tied=False)  # one graph for all lengths
    untied, head = transformer(shape).weight_count, shape.vocab * shape.hidden
    is_number = len(re.sub(r"\D", "", row.text("params_b"))) > 1
    if "tied" not in cells and shape.style in ("llama", "nemotron") and is_number:
        cells.put("tied", abs(untied - head - 1e9 * billions) < abs(untied - 1e9 * billions))
    too_many = billions < _LABELS_BELOW and 1e9 * billions > _FAR * untied
    if too_many and not row.has("experts"):
        raise Unreadable(
            "params_b is over three times what hidden, layers and ffn have: experts that no column counts (experts, top_k, expert_ffn)?"
        )


def _shape(cells: Cells) -> TransformerShape:
    try:
        return shape_of(_planner_row(cells), fused=True)
    except tables.RowSkipped as trouble:
        raise Unreadable(trouble.reason) from None


# -- adapters -----------------------------------------------------------------------------------------------------------------

_ADAPTERS = re.compile(
    r"(?:\b|_)(?<!no[ _-])(?<!non[ _-])(?<!without[ _-])(?<!w/o )"
    r"(?:(?:(?:(?:q|dy|rs)-?)?lora|q?dora)(?:\b|_)|low[ _-]rank\b|adapters?\b|peft\b)"
)
_WHOLE = re.compile(r"\bsft\b|\bpre-?train|\bfull\b")


def says_adapters(row: Row) -> bool | None:
    """Whether a row says that adapters are trained, or all weights; None where it says neither.

    >>> [says_adapters(Row(line=2, cells={name: text})) for name, text in (("notes", "task=SFT"), ("method", "QLoRA"), ("model", "7B"))]
    [False, True, None]
    """
    notes = row.text("notes").lower()
    if "task=" in notes:
        return "task=lora" in notes
    own = " ".join(row.text(name) for name in ("task", "method", "finetuning", "training")).lower()
    if row.count("lora_rank") or _ADAPTERS.search(f"{own} {row.text('model')} {row.text('dataset_group')}".lower()):
        return True
    return False if _WHOLE.search(own) else None


# Operations per weight and token of a step: 2 forward, 2 for the gradients of the inputs, 2 for those of the weights (Kaplan et al.,
# arXiv:2001.08361, section 2.1). Between without and with the last.
_FROZEN_FLOP = 5.0


def _counts_no_weight_gradients(row: Row, cells: Cells) -> bool:
    """Whether a publisher counts no operations for gradients of weights: then adapters were trained.

    Columns ``tflops_per_gpu`` (of the model, without recomputation) and ``tokens_per_s_per_gpu``; the head and attention come on top of the
    matrices of the blocks, so that a full step counts more than 6 for each of their weights.
    """
    if has_failed(row):
        return False
    rate, tokens = row.positive("tflops_per_gpu"), row.positive("tokens_per_s_per_gpu")
    if rate is None or tokens is None or "moe" in row.text("net").lower():
        return False
    layers = transformer(_shape(cells)).layers
    blocks = sum(layer.weight_count for layer in layers if layer.block and layer.kind == "linear")
    return rate * 1e12 / tokens < _FROZEN_FLOP * blocks


# -- the plan -----------------------------------------------------------------------------------------------------------------

_IN_TOKENS = re.compile(r"([0-9][0-9.,]*) ?([kKmMgGbB]i?)? ?(?:tok|tokens?)\b")


def _plan(row: Row, cells: Cells) -> None:
    cells.counts(row, "gpus", "tp", "pp", "cp", "ep", "etp", "dp", "vpp", "micro_batch", "grad_accum")
    _degrees(row, cells)
    _batch(row, cells)
    stage, group = sharding_of(row, usual_node(machine_of(_planner_row(cells)).cluster))
    cells.put("zero_stage", stage)
    cells.put("shard_group", group)
    cells.put("cpu_offload", True if offloads_optimizer(row) else None)
    name, blocks = recompute_of(row.text("recompute"))
    cells.put("recompute", name)
    cells.put("recompute_blocks", blocks)
    balance, capacity = balance_of(row.text("expert_balance"))
    cells.put("dispatcher", dispatcher_of(row.text("dispatcher")))
    cells.put("expert_kernels", row.text("expert_kernels"))
    cells.put("expert_balance", balance)
    cells.put("expert_capacity", capacity)
    # Beside the framework, too: "Megatron-LM (2021, non-interleaved)". Tables say 1F1B of interleaved chunks, too.
    remarks = re.split(r"[(),]+", row.text("framework"))[1:]
    schedule = next(filter(None, map(schedule_of, [row.text("schedule"), *map(str.strip, remarks)])), "")
    cells.put("schedule", "interleaved" if schedule == "1f1b" and _number(cells, "vpp") > 1 else schedule)
    cells.put("sp", yes_or_no(row.text("sp")))


def _number(cells: Cells, name: str) -> int:
    return int(cells.get(name, "1"))


def _degrees(row: Row, cells: Cells) -> None:
    """Replicas where a table counts them in another way: beside the ranks that share weights or experts, or with those of cp.

    Where one of tp and pp is not stated, it is what the others leave.
    """
    gpus, dp = row.count("gpus"), row.count("dp")
    if gpus is None or dp is None:
        return
    tp, pp, cp = (_number(cells, name) for name in ("tp", "pp", "cp"))
    sharded = row.count("fsdp") if row.text("fsdp").isdigit() else None
    product = tp * pp * cp * dp
    if product == gpus:
        return
    for ranks in (sharded, row.count("ep")):
        if ranks is not None and product * ranks == gpus:
            cells.put("dp", dp * ranks)
            return
    if cp > 1 and product == gpus * cp and dp % cp == 0:
        cells.put("dp", dp // cp)
    elif (row.count("tp") is None) != (row.count("pp") is None) and gpus % product == 0:
        cells.put("pp" if row.count("pp") is None else "tp", gpus // product)


def _batch(row: Row, cells: Cells) -> None:
    """Samples per step: as stated, in tokens, per replica, or what a time and a throughput together imply."""
    seq = int(cells["seq"]) if "seq" in cells else None
    in_tokens = _samples_in_tokens(row, seq)
    if in_tokens is not None:  # a rounded number: the fullest replica decides
        together = _number(cells, "dp") * _number(cells, "micro_batch")
        in_tokens = -(-in_tokens // together) * together
    batch = in_tokens or row.count("global_batch")
    cells.put("global_batch", batch)
    each = row.count("batch_per_gpu") or row.count("batch_per_dp")
    if batch is None:
        cells.put("batch_per_gpu", each)
    gpus, tp, pp = row.count("gpus"), _number(cells, "tp"), _number(cells, "pp")
    dp = _number(cells, "dp") if "dp" in cells else (gpus or 0) // (tp * pp * _number(cells, "cp"))
    if batch is not None and dp > batch and dp % batch == 0 and not (row.has("cp") or row.has("dp") or has_failed(row)):
        cells.put("cp", dp // batch)  # more devices than samples share them by their positions
    implied = _implied_batch(row, gpus or tp * pp * dp, seq)
    if batch is not None or each is not None or implied is None or not dp:
        return
    micro_batch = row.count("micro_batch")
    if micro_batch is None:
        cells.put("global_batch", implied)
    elif row.count("grad_accum") is None:
        cells.put("grad_accum", max(round(implied / (micro_batch * dp)), 1))


def _samples_in_tokens(row: Row, seq: int | None) -> int | None:
    """The global batch of a row that states it in tokens ("4M tokens", in powers of two where those are whole samples); else None.

    >>> said = ("4M tokens", "4Mi tokens", "4,194,304 tokens (ramped up)", "1024", "4M")
    >>> [_samples_in_tokens(Row(line=2, cells={"global_batch": text}), 4096) for text in said]
    [1024, 1024, 1024, None, None]
    """
    found = _IN_TOKENS.match(row.text("global_batch"))
    if found is None or not seq:
        return None
    said = quantities.in_tokens(f"{found[1].replace(',', '')}{found[2] or ''} tokens")
    if said is None:
        return None
    stated, binary = said
    return round(binary / seq) if binary % seq == 0 else max(round(stated / seq), 1)


def _implied_batch(row: Row, gpus: int, seq: int | None) -> int | None:
    """Samples per step that a time and a throughput together imply; None where a row lacks either.

    >>> _implied_batch(Row(line=2, cells={"step_time_ms": "4096", "tokens_per_s_per_gpu": "1000"}), gpus=8, seq=2048)
    16
    """
    time_ms = None if has_failed(row) else row.positive("step_time_ms")
    if time_ms is None:
        return None
    positions = seq or 0
    work = {"samples_per_s": 1.0, "tokens_per_s_per_gpu": positions / gpus if gpus else 0.0, "tokens_per_s": positions}
    for name, per_sample in work.items():
        rate = row.positive(name)
        if rate is not None and per_sample and round(rate * time_ms * 1e-3 / per_sample) >= 1:
            return round(rate * time_ms * 1e-3 / per_sample)
    return None
