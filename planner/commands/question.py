"""Turns the options of a command line into a Request; collects everything wrong with them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from planner.commands.mesh_options import restriction_from
from planner.commands.output import Output, output_from, remark
from planner.commands.values import MAX_GPUS, Values
from planner.core.errors import did_you_mean
from planner.core.quantities import in_tokens
from planner.core.request import CostModelName, Mode, Request, SolverName, SpaceChoice

if TYPE_CHECKING:
    from costmodel.hardware.cluster import Cluster

__all__ = ["FAMILIES", "SPACES", "command_line_of", "output_of", "request_from", "size_of", "whole_cluster"]

SPACES = ("auto", "mesh", "layers")

# Regions of the space, as costmodel.layerwise.plan.family_of_plan names them.
FAMILIES = ("one-device", "data", "model", "hybrid", "pipeline", "spatial", "mixed")
_MAX_TOP = 10_000


def output_of(options: Mapping[str, Any], values: Values) -> Output:
    """Check the output options of a command."""
    where = output_from(
        values,
        json=options["json"],
        format=options["format"],
        output=options["output"],
        width=options["width"],
        quiet=options["quiet"],
        verbose=options["verbose"],
        export=options.get("export"),
    )
    for flag, path in (("--output", where.path), ("--export", where.export)):
        if path is not None:
            refuse_inputs(values, flag, path, options)
    if options.get("assume_free"):  # rows of numbers (csv) have no place for it
        remark(where, f"ASSUMED FREE by --assume-free: {', '.join(dict.fromkeys(options['assume_free']))}")
    return where


# Options that name what is written; every other file among the options is read.
_WRITTEN = frozenset({"output", "export", "export_workload", "html", "figures", "trace", "save", "folder"})


def refuse_inputs(values: Values, flag: str, path: Path, options: Mapping[str, Any]) -> None:
    """Refuse to write a result over a file that the command reads: any other option or argument that names it."""
    if not path.exists():
        return
    for name, value in options.items():
        words = [value] if isinstance(value, (str, Path)) else value if isinstance(value, (list, tuple)) else []
        if name in _WRITTEN:
            continue
        if any(isinstance(word, (str, Path)) and _is_same_file(path, Path(word)) for word in words):
            values.add(f"{flag} {path}: is an input of this command; choose another file")
            return


def _is_same_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # no such file, a name that is too long, a NUL character
        return False


def request_from(options: Mapping[str, Any], values: Values) -> Request:
    """Check the options that ask a question.

    Parameters
    ----------
    options : mapping
        Parameters of a command by name; those that a command does not have are absent.
    values : Values
        Takes the problems.
    """
    get = options.get
    neutral = Request(model="")
    micro_batches = get("micro_batches")
    several = micro_batches is not None and any(mark in micro_batches for mark in (",", ".."))
    if get("model") is not None and not options["model"].strip():
        values.add("MODEL: is empty; give a bundled name or a file")
    cost_model = values.choice("--cost-model", get("cost_model") or neutral.cost_model, ("roofline", "paleo"))
    _check_paleo_only(options, cost_model, values)
    gpus = get("gpus")
    algorithms = get("paleo_algorithms")
    assumed = _assumed(get("assume") or (), get("mode"), values)
    return Request(
        model=get("model") or "",
        cluster=get("cluster"),
        device=get("device"),
        gpus=neutral.gpus if gpus is None else values.count("--gpus", gpus, most=MAX_GPUS),
        whole_cluster=bool(get("whole_cluster")),
        batch=_batch(options, values),
        seq=values.optional_count("--seq", get("seq")),
        assume_free=tuple(dict.fromkeys(get("assume_free") or ())),
        lora_rank=values.optional_count("--lora-rank", get("lora_rank")),
        precision=_known_precision(get("precision"), values),
        optimizer=_known_optimizer(get("optimizer"), values),
        mode=cast("Mode", values.choice("--mode", get("mode") or neutral.mode, ("training", "inference"))),
        cost_model=cast("CostModelName", cost_model),
        ppp_comp=values.share("--ppp-comp", get("ppp_comp")),
        ppp_comm=values.share("--ppp-comm", get("ppp_comm")),
        paleo_pipeline=bool(get("paleo_pipeline")),
        paleo_extensions=bool(get("paleo_extensions")),
        paleo_algorithms=Path(algorithms) if algorithms is not None else None,
        collective=get("collective"),
        fix=_fixes(get("fix") or (), values),
        family=_family(get("family"), values),
        memory_limit=get("memory_limit"),
        memory_reserve=get("memory_reserve"),
        micro_batches=None if several else values.optional_count("--num-micro-batches", micro_batches),
        top=neutral.top if get("top") is None else values.count("--top", options["top"], most=_MAX_TOP),
        diverse=None if get("diverse") is None else bool(get("diverse")),
        time_limit_s=values.seconds("--time-limit", get("time_limit")),
        gap=values.ratio("--gap", get("gap") or "0"),
        seed=0 if get("seed") is None else values.count("--seed", options["seed"], least=0, most=2**31 - 1),
        solver=cast(
            "SolverName", values.choice("--solver", get("solver") or "auto", ("auto", "program", "elimination"))
        ),
        space=cast("SpaceChoice", values.choice("--space", get("space") or neutral.space, SPACES)),
        mesh=restriction_from(get("mesh") or {}, micro_batches if several else None, values),
        objective=_objective(get("objective"), get("mode"), values),
        assume=assumed,
        price_per_hour=_price(get("price_per_hour"), values),
        power_w=_power(get("power_w"), values),
        calibration=get("calibration"),
        framework=get("framework"),
        sensitivity=bool(get("sensitivity")),
        stages=get("stages") or "",
        command_line=command_line_of(options.get("context")),
    )


def _batch(options: Mapping[str, Any], values: Values) -> int | None:
    """Samples of a step; tokens are divided by the positions of a sample, and have to be a whole number of them."""
    text = options.get("batch")
    tokens = None if text is None else in_tokens(text)
    if tokens is None:
        return values.optional_count("--batch", text)
    seq = _positions(options, values)
    if seq is None:
        return None
    stated, binary = tokens
    if stated % seq == 0:
        return values.count("--batch", f"{stated / seq:.0f}")
    fewer = int(stated // seq)
    near = binary if binary % seq == 0 else max(fewer, 1) * seq
    values.add(
        f"--batch {text}: is {stated / seq:,.2f} samples of {seq:,} positions, not a whole number; "
        f"--batch {near / seq:.0f} is {near:,.0f} tokens"
    )
    return None


def _positions(options: Mapping[str, Any], values: Values) -> int | None:
    """Positions of a sample, as the question or the network file says; None where the network cannot be read (said later)."""
    from planner.core.errors import PlannerError
    from planner.importers.networks import load_model

    if options.get("seq") is not None:
        return Values().optional_count("--seq", options["seq"])  # what is wrong with it is said once
    if not options.get("model"):
        values.add(f"--batch {options['batch']}: tokens need --seq, or a network; or give samples")
        return None
    try:
        seq = load_model(options["model"], assume_free=tuple(options.get("assume_free") or ())).seq
    except PlannerError:
        return None
    if seq is None:
        values.add(f"--batch {options['batch']}: samples of '{options['model']}' have no tokens; give samples")
    return seq


def whole_cluster(name: str | None, values: Values) -> str | None:
    """Size of a finite cluster, as ``--gpus`` takes it where it is left out; a problem where nothing limits the workers.

    None where the cluster cannot be read: what is wrong with it is said when the question is resolved.
    """
    missing = "--gpus: is missing; say how many workers there are at most, as in --gpus 16"
    if name is None:
        values.add(missing)
        return None
    cluster = _readable(name)
    if cluster is None:
        return None
    if cluster.max_devices is None:
        values.add(f"{missing} (nothing limits the size of cluster '{cluster.name}')")
        return None
    return str(cluster.max_devices)


def size_of(name: str) -> int | None:
    """Devices of a cluster; None where nothing limits them, or the cluster cannot be read (said when the question is resolved)."""
    cluster = _readable(name)
    return None if cluster is None else cluster.max_devices


def _readable(name: str) -> Cluster | None:
    from planner.core.errors import PlannerError
    from planner.files.loading import load_cluster

    try:
        return load_cluster(name).cluster
    except PlannerError:
        return None


def _check_paleo_only(options: Mapping[str, Any], cost_model: str, values: Values) -> None:
    """An option that would be ignored is an error, never silence."""
    if cost_model == "paleo":
        if options.get("calibration"):
            values.add("--calibration: only has a meaning with --cost-model roofline; paleo has constants of its own")
        if options.get("framework"):
            values.add("--framework: only has a meaning with --cost-model roofline; paleo is a program of its own")
        return
    for name in ("ppp_comp", "ppp_comm", "paleo_pipeline", "paleo_algorithms", "paleo_extensions"):
        if options.get(name):
            values.add(f"--{name.replace('_', '-')}: only has a meaning with --cost-model paleo")


def _known_precision(text: str | None, values: Values) -> str | None:
    if text is None:
        return None
    from costmodel.precision import PRECISIONS

    return values.choice("--precision", text, tuple(PRECISIONS))


def _known_optimizer(text: str | None, values: Values) -> str | None:
    if text is None:
        return None
    from costmodel.precision import OPTIMIZERS

    return values.choice("--optimizer", text, tuple(OPTIMIZERS))


def _objective(text: str | None, mode: str | None, values: Values) -> str | None:
    """Networks that generate text are served by objectives of their own; the network says later which kind it is."""
    if text is None:
        return None
    from strategies.mesh.settings import OBJECTIVES
    from strategies.serving.space import SERVING_OBJECTIVES

    known = tuple(dict.fromkeys((*SERVING_OBJECTIVES, *OBJECTIVES))) if mode == "inference" else OBJECTIVES
    return values.choice("--objective", text.strip().replace("-", "_"), known)


_MOST_PRICE = 1e6


def _price(text: str | None, values: Values) -> float | None:
    price = values.positive("--price", None if text is None else text.strip().removeprefix("$"))
    if price is not None and price > _MOST_PRICE:
        values.add(f"--price {text}: must be at most {_MOST_PRICE:,.0f} USD per hour")
    return price


def _power(text: str | None, values: Values) -> tuple[float, float | None] | None:
    """Read ``--power BUSY[,IDLE]``, with units."""
    if text is None:
        return None
    from planner.core.quantities import QuantityError, parse_quantity

    try:
        watts = [parse_quantity(part.strip(), "watts") for part in text.split(",")]
    except QuantityError as error:
        values.add(f"--power {text}: {error}")
        return None
    if not 1 <= len(watts) <= 2 or 0.0 in watts:
        values.add(f"--power {text}: must be the power of a busy GPU and, behind a comma, of an idle one; each above 0")
        return None
    busy, idle = watts[0], watts[1] if len(watts) > 1 else None
    if idle is not None and idle > busy:
        values.add(f"--power {text}: an idle GPU draws no more than a busy one")
        return None
    return busy, idle


# Assumptions that say how far something is so, from 0 to 1, beside those whose names end in _overlap or _share.
_SHARES = frozenset(
    (
        "adapter_copies",
        "autograd_copies",
        "captured",
        "channels_first",
        "fast_convolutions",
        "fused_activation",
        "fused_bias",
        "fused_concatenation",
        "fused_gradient_sum",
        "fused_normalised_gradient",
        "gradient_copies",
        "node_gathers",
        "norm_copies",
        "parameter_servers",
        "prompts_in_step",
        "real_input",
    )
)


def _assumed(texts: Sequence[str], mode: str | None, values: Values) -> tuple[tuple[str, float], ...]:
    """Read ``--assume NAME=VALUE``; a later one wins. Inference has assumptions of its own: those of serving."""
    if not texts:
        return ()
    from dataclasses import fields

    from costmodel.framework import LayerAssumptions
    from costmodel.mesh.assumptions import RENAMED_ASSUMPTIONS, MeshAssumptions
    from costmodel.serving.workload import ServingAssumptions

    models = (ServingAssumptions, LayerAssumptions) if mode == "inference" else (MeshAssumptions, LayerAssumptions)
    known = tuple(field.name for model in models for field in fields(model))
    result: dict[str, float] = {}
    for text in texts:
        name, equals, number = (part.strip() for part in text.partition("="))
        if not equals:
            values.add(f"--assume {text}: must be NAME=VALUE, as in dp_overlap=0.8")
            continue
        name = RENAMED_ASSUMPTIONS.get(name, name)
        if name not in known:
            values.add(f"--assume {text}: no such assumption{did_you_mean(name, known)} (known: {', '.join(known)})")
        value = values.at_least_zero(f"--assume {name}", number)
        if (name.endswith(("_overlap", "_share")) or name in _SHARES) and value > 1:
            values.add(f"--assume {text}: is a share, at most 1")
        if name.endswith("_per_s") and value == 0 and name != "storage_bytes_per_s":
            values.add(f"--assume {text}: a bandwidth is above 0")
        result[name] = value
    return tuple(result.items())


def _family(text: str | None, values: Values, *, more: tuple[str, ...] = ()) -> str | None:
    if text is None:
        return None
    word = text.strip().lower().replace("_", "-").replace(" ", "-")
    return values.choice("--family", word, (*FAMILIES, *more))


_DEGREES = ("batch", "out_channels", "in_channels", "height")


def _fixes(texts: list[str] | tuple[str, ...], values: Values) -> tuple[str, ...]:
    """Check the form of --fix; whether its layers exist is known with the network."""
    for text in texts:
        pattern, colon, split = text.rpartition(":")
        if not colon or not pattern or not split:
            values.add(f"--fix {text}: must be LAYERS:SPLIT, as in 'conv*:batch' or 'fc6:batch=4,out_channels=2'")
            continue
        parts = [part.partition("=") for part in split.split(",")]
        if len(parts) > 1 and any(not equals for _, equals, _ in parts):
            values.add(f"--fix {text}: more than one way to split needs degrees, as in 'batch=4,out_channels=2'")
        names = [name.strip() for name, _, _ in parts]
        for name in names:
            if name not in _DEGREES:
                hint = did_you_mean(name, _DEGREES)
                values.add(f"--fix {text}: '{name}' is no way to split a layer{hint} (known: {', '.join(_DEGREES)})")
        if len(set(names)) < len(names):
            values.add(f"--fix {text}: names a way to split twice")
        for name, equals, degree in parts:
            if equals:
                values.count(f"--fix {pattern}:{name}", degree.strip(), most=MAX_GPUS)
    return tuple(texts)


def command_line_of(context: typer.Context | None) -> str:
    """The command line as it was typed, for provenance."""
    arguments = context.obj.get("argv") if context is not None and isinstance(context.obj, dict) else None
    return shlex.join(["planner", *(sys.argv[1:] if arguments is None else arguments)])
