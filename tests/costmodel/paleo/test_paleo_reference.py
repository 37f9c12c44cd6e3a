"""The preset `paleo` against the outputs of the original program, first release (b12c04b). Each test asserts 1e-9 relative."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.hardware.device import Device
from costmodel.kernels.roofline import CostModelError
from costmodel.layerwise.plan import shard_of
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer, Shard, family_of
from costmodel.network.layers.base import params_from
from costmodel.paleo.convolution import Calls, Plain, Rates, convolution_passes, fft_calls, gemm_calls
from costmodel.paleo.model import PaleoCompute
from costmodel.paleo.scaling import (
    HybridStep,
    Link,
    batch_table,
    hybrid_step,
)
from planner.importers.paleo_json import convert
from tests.costmodel.paleo.scaling_tables import SCHEMES, data_parallel_rows, training_hours

TOLERANCE = 1e-9
PASSES = ("forward", "backward_data", "backward_filter")


class Worst:
    """Largest relative difference seen; equal zeros count as 0."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0

    def see(self, ours: float, theirs: float) -> None:
        self.count += 1
        scale = max(abs(ours), abs(theirs))
        self.value = max(self.value, abs(ours - theirs) / scale if scale else 0.0)

    def check(self, least: int) -> None:
        """Assert closeness, and that so many numbers were compared at least."""
        assert self.count >= least, self.count
        assert self.value <= TOLERANCE, self.value


def reference(folder: Path, name: str) -> Any:
    return json.loads((folder / "paleo" / "reference" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def devices(reference_data: Path) -> dict[str, Device]:
    return {
        name: Device(
            name=name,
            peak_flop_per_s={"fp32": d["peak_gflops"] * 1e9},
            memory_bytes=12e9,
            memory_bandwidth_bytes_per_s=d["mem_bandwidth_GBps"] * 1e9,
            clock_hz=d["clock_mhz"] * 1e6,
        )
        for name, d in reference(reference_data, "devices")["devices"].items()
    }


@pytest.fixture(scope="module")
def nets(reference_data: Path) -> dict[str, Graph]:
    folder = reference_data / "paleo" / "nets"
    return {path.stem: convert(json.loads(path.read_text())).graph for path in sorted(folder.glob("*.json"))}


def link_of(gbps: float, ppp_comm: float) -> Link:
    return Link(bandwidth_bytes_per_s=gbps / 8 * 1e9, ppp_comm=ppp_comm)


def whole(layer: Layer, batch: int) -> Shard:
    return shard_of(layer, batch_table([1]), batch)


def test_clock_floors(devices: dict[str, Device], reference_data: Path) -> None:
    worst = Worst()
    for name, d in reference(reference_data, "devices")["devices"].items():
        worst.see(Rates.of(devices[name], 1.0).floor_s * 1e3, d["clock_floor_ms"])
    worst.check(8)


@pytest.mark.parametrize("net", ["alex_v2", "nin"])
def test_layers_of_networks(net: str, nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path) -> None:
    worst = Worst()
    for batch, passes in reference(reference_data, f"v0_grid_{net}")["batches"].items():
        for i, layer in enumerate(nets[net].layers):
            shard = whole(layer, int(batch))
            for j, name in enumerate(PASSES):
                table = passes[name]
                assert table["layer"][i] == layer.name
                flop = PaleoCompute(device=devices["K20"]).pass_flop(layer, shard)[j]
                skipped = name == "backward_data" and "data" in layer.inputs and layer.kind == "convolution"
                worst.see(0.0 if skipped else float(flop[0]), table["flops"][i])
                for key, times in table["times_ms"].items():
                    device, ppp = key.split("|ppp=")
                    compute = PaleoCompute(device=devices[device], ppp_comp=float(ppp))
                    parts = compute.pass_parts(layer, shard, needs_input_gradient=True)
                    ours = (parts.forward, parts.backward_input, parts.backward_weight)[j]
                    worst.see(float(ours.compute_s[0]) * 1e3, times["comp"][i])
                    worst.see(float(ours.memory_s[0]) * 1e3, times["comm"][i])
                    worst.see(float(ours.total_s[0]) * 1e3, times["total"][i])
    worst.check(2700)


@pytest.mark.parametrize("net", ["alex_v2", "nin"])
def test_sums_of_networks(net: str, nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path) -> None:
    """Per-layer times add up, and with ``use_pipeline`` the forward pass gives the published lower bound."""
    worst = Worst()
    for batch, passes in reference(reference_data, f"v0_grid_{net}")["batches"].items():
        for key, times in passes["forward"]["times_ms"].items():
            device, ppp = key.split("|ppp=")
            for pipeline, expected in ((False, times["sum_total"]), (True, times["sum_lowerbound"])):
                compute = PaleoCompute(device=devices[device], ppp_comp=float(ppp), use_pipeline=pipeline)
                total = 0.0
                for layer in nets[net].layers:
                    times_s = compute.pass_times(layer, whole(layer, int(batch)), needs_input_gradient=True)
                    total += float(times_s.forward_s[0])
                worst.see(total * 1e3, expected)
    worst.check(40)


def unit_layer(entry: dict[str, Any]) -> tuple[Layer, int]:
    spec = entry["spec"]
    batch, height, width, channels = spec["inputs"]
    values: dict[str, Any] = {}
    if entry["type"] == "conv2d":
        kind = "convolution"
        values = {"out_channels": spec["filters"][3], "kernel": tuple(spec["filters"][:2])}
    elif entry["type"] == "pool2d":
        kind, values = "pool", {"kernel": tuple(spec["kernel"][1:3])}
    else:
        kind = "dropout"
    if kind != "dropout":
        values |= {"stride": tuple(spec["strides"][1:3]), "padding": spec["padding"].lower()}
    params = params_from(kind, values)
    shape = (channels, height, width)
    output = family_of(kind).output_shape(params, (shape,))
    return Layer(
        name="unit", kind=kind, params=params, inputs=("x",), input_shapes=(shape,), output_shape=output
    ), batch


def compare_unit(worst: Worst, times: dict[str, Any], calls: Calls, devices: dict[str, Device]) -> None:
    for key, expected in times.items():
        if "|ppp=" in key:
            device, ppp = key.split("|ppp=")
            ours = calls.parts(Rates.of(devices[device], float(ppp)), np.zeros(1))
            for mine, theirs in zip((ours.compute_s, ours.memory_s, ours.total_s), expected, strict=True):
                worst.see(float(mine[0]) * 1e3, theirs)
    worst.see(float(np.sum(calls.total_flop)), times["flops"])
    for call, moved in zip(calls.moved_bytes, times["mem_bytes"], strict=True):
        worst.see(float(np.sum(call.amount)), moved)


def test_units(devices: dict[str, Device], reference_data: Path) -> None:
    """230 stand-alone layers of odd shapes; what the original's assertions stop is refused, and nothing else."""
    worst, refused = Worst(), 0
    compute = PaleoCompute(device=devices["K20"])
    for entry in reference(reference_data, "v0_layer_units")["layers"]:
        layer, batch = unit_layer(entry)
        assert (batch, *layer.output_shape[1:], layer.output_shape[0]) == tuple(entry["outputs"])
        fails = any("error" in entry["passes"][name] for name in PASSES)
        assert bool(compute.refusal(layer)) == fails, entry
        shard = whole(layer, batch)
        if entry["type"] == "conv2d":
            for name, plain in zip(PASSES, convolution_passes(layer, shard), strict=True):
                if "error" not in entry["passes"][name]:
                    compare_unit(worst, entry["passes"][name], gemm_calls(plain), devices)
        if fails:
            refused += 1
            with pytest.raises(CostModelError, match="unit: PALEO stops at this shape"):
                compute.pass_times(layer, shard, needs_input_gradient=True)
            continue
        for key in ("TITAN_X|ppp=1.0", "K20|ppp=0.62"):
            device, ppp = key.split("|ppp=")
            preset = PaleoCompute(device=devices[device], ppp_comp=float(ppp))
            parts = preset.pass_parts(layer, shard, needs_input_gradient=True)
            for name, ours in zip(PASSES, (parts.forward, parts.backward_input, parts.backward_weight), strict=True):
                expected = entry["passes"][name][key]
                for mine, theirs in zip((ours.compute_s, ours.memory_s, ours.total_s), expected, strict=True):
                    worst.see(float(mine[0]) * 1e3, theirs)
    assert refused == 76
    worst.check(3000)


def test_updates(nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path) -> None:
    worst = Worst()
    for net, device, weight_bytes, comp, comm, total in reference(reference_data, "v0_apply_updates")["rows"]:
        assert nets[net].weight_count * 4 == weight_bytes
        compute = PaleoCompute(device=devices[device], ppp_comp=0.3)  # the efficiency does not reach the update
        parts = compute.update_parts(np.asarray(weight_bytes / 4))
        for mine, theirs in zip((parts.compute_s, parts.memory_s, parts.total_s), (comp, comm, total), strict=True):
            worst.see(float(mine) * 1e3, theirs)
        # Layer by layer, as a plan is evaluated, it comes to the same.
        layers = sum(float(compute.update_s(np.asarray(float(layer.weight_count)))) for layer in nets[net].layers)
        worst.see(layers * 1e3, total)
    worst.check(100)


def test_exchange_schemes(devices: dict[str, Device], reference_data: Path) -> None:
    worst = Worst()
    for _, gbps, ppp, size, workers, *expected in reference(reference_data, "comm_schemes")["rows"]:
        compute = PaleoCompute(device=devices["K20"])
        for name, theirs in zip(SCHEMES, expected, strict=True):
            ours = link_of(gbps, ppp).exchange_s(compute, name, float(size), [workers])
            worst.see(float(ours[0]) * 1e3, theirs)
    worst.check(4 * 1836)


def compare_rows(worst: Worst, rows: list[list[float]], **question: Any) -> None:
    ours = data_parallel_rows(workers=[int(row[0]) for row in rows], **question)
    for row, expected in zip(ours, rows, strict=True):
        assert (row.workers, row.effective_batch, row.iterations) == tuple(expected[:3])
        mine = [row.forward_s, row.backward_s, row.update_s, row.compute_s, *(row.exchange_s[s] for s in SCHEMES)]
        for value, theirs in zip(mine, expected[3:], strict=True):
            worst.see(value * 1e3, theirs)


def networks(folder: Path) -> dict[str, float]:
    return {name: n["bandwidth_gbps"] for name, n in reference(folder, "devices")["networks"].items()}


def test_scaling_grid(nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path) -> None:
    worst, gbps = Worst(), networks(reference_data)
    for net, device, network, comp, comm, batch, scaling, pipeline, rows in reference(
        reference_data, "v0_scaling_grid"
    )["rows"]:
        compare_rows(
            worst,
            rows,
            graph=nets[net],
            compute=PaleoCompute(device=devices[device], ppp_comp=comp, use_pipeline=pipeline),
            network=link_of(gbps[network], comm),
            batch=batch,
            scaling=scaling,
        )
    worst.check(400 * 4 * 8)


def data_parallel_cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, case in reference(folder, "v0_simulate_cases")["cases"].items():
        if "hybrid_workers" not in case:
            yield name, case


def test_scripts_of_the_case_studies(nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path) -> None:
    worst = Worst()
    for _, case in data_parallel_cases(reference_data):
        compare_rows(
            worst,
            case["rows"],
            graph=nets[case["net"]],
            compute=PaleoCompute(
                device=devices[case["device"]], ppp_comp=case["ppp_comp"], use_pipeline=case["use_pipeline"]
            ),
            network=link_of(case["network_gbps"], case["ppp_comm"]),
            batch=case["batch_size"],
            scaling=case["scaling"],
        )
    worst.check(500)


def hybrid(nets: dict[str, Graph], devices: dict[str, Device], workers: int, pipeline: bool = False) -> HybridStep:
    """One weird trick on K20s, from the network without splits."""
    compute = PaleoCompute(device=devices["K20"], ppp_comp=0.46, use_pipeline=pipeline)
    return hybrid_step(nets["alex_v2_1gpu"], workers, 128, compute, link_of(64, 0.75))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("pipeline", [False, True])
def test_hybrid(
    workers: int, pipeline: bool, nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path
) -> None:
    name = f"hybrid_{workers}gpu" + ("_pipeline" if pipeline else "")
    case = reference(reference_data, "v0_simulate_cases")["cases"][name]
    step, worst = hybrid(nets, devices, workers, pipeline), Worst()
    for part, expected in zip((step.data, step.model), case["rows"], strict=True):
        assert (step.workers, step.effective_batch) == tuple(expected[:2])
        for mine, theirs in zip(
            (part.forward_s, part.backward_s, part.update_s, part.exchange_s), expected[2:], strict=True
        ):
            worst.see(mine * 1e3, theirs)
    worst.see(step.step_s * 1e3, case["sum_ms"])
    worst.see(step.effective_batch / step.step_s, case["images_per_s"])
    between = case["intermediate"]
    assert step.data.weight_bytes == between["data_parallel_params_bytes"]
    assert step.model.weight_bytes == between["model_parallel_params_bytes_all_splits"]
    for mine, key in (
        (step.forward.lower_s, "model_parallel_fwd_lower_ms"),
        (step.forward.upper_s, "model_parallel_fwd_upper_ms"),
        (step.backward.lower_s, "model_parallel_bwd_lower_ms"),
        (step.backward.upper_s, "model_parallel_bwd_upper_ms"),
        (step.fetch_s, "time_fetch_ms"),
    ):
        worst.see(mine * 1e3, between[key])
    worst.check(15)


def test_tables_of_the_paper(nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path) -> None:
    tables, worst = reference(reference_data, "paper_recomputed")["v0"], Worst()
    hours = []
    for row in tables["one_weird_trick_hybrid"]["rows"]:
        step = hybrid(nets, devices, row["workers"])
        worst.see(step.step_s * 1e3, row["iter_ms"])
        hours.append(training_hours(step.step_s, step.effective_batch, epochs=90, samples=1.2e6))
        worst.see(hours[-1], row["train_hours_90ep"])
    assert [round(h, 2) for h in hours] == [96.31, 49.57, 25.42, 14.37]
    published = {(1, 256): 117.40, (32, 256): 7.58, (32, 1024): 4.64, (128, 1024): 2.27}
    nin = {"graph": nets["nin"], "compute": PaleoCompute(device=devices["K20X"], ppp_comp=0.21)}
    for row in tables["firecaffe_nin"]["rows"]:
        key = (row["workers"], row["global_batch"])
        (ours,) = data_parallel_rows(**nin, network=link_of(70, 0.56), batch=key[1], workers=key[:1], scaling="strong")
        worst.see(ours.step_s("tree") * 1e3, row["iter_ms"])
        trained = training_hours(ours.step_s("tree"), ours.effective_batch, epochs=47, samples=1.2e6)
        worst.see(trained, row["train_hours"])
        assert round(trained, 2) == published.get(key, round(trained, 2))
    compute = PaleoCompute(device=devices["K20"], ppp_comp=0.46)
    rows = tables["alexnet_pure_data_parallel_weak"]["rows"]
    weak = data_parallel_rows(
        nets["alex_v2_1gpu"],
        compute,
        link_of(64, 0.75),
        batch=128,
        workers=[r["workers"] for r in rows],
        scaling="weak",
    )
    for ours, row in zip(weak, rows, strict=True):
        worst.see(ours.step_s("tree") * 1e3, row["iter_ms"])
        worst.see(weak[0].step_s("tree") / ours.step_s("tree") * ours.workers, row["speedup"])
    worst.check(25)


def test_fft_units(devices: dict[str, Device], reference_data: Path) -> None:
    """Formulas alone: the geometry is that of the last release, given with each case."""
    worst, rates = Worst(), Rates.of(devices["TITAN_X"], 1.0)
    for row in reference(reference_data, "fft_units")["rows"]:
        plain = Plain(
            inputs=tuple(map(float, row["inputs"])),
            filters=tuple(map(float, row["filters"])),
            outputs=tuple(map(float, row["outputs"])),
            padding=tuple(row["pad"]),
        )
        for name, calls in (
            ("fft", fft_calls(plain, tiled=False)),
            ("fft_tiling", fft_calls(plain, tiled=True)),
        ):
            expected = row["options"][name]
            compare_option(worst, calls, expected, rates)
        if row["stride"] == 1 or row["pass"] == PASSES[0]:  # other gradients have holes, which the file does not give
            gemm = row["options"]["gemm"]
            compare_option(worst, gemm_calls(plain, padded_read=True), gemm, rates)
            more = row["options"]["gemm_additional_mem"]
            compare_option(worst, gemm_calls(plain, padded_read=True, workspace=True), more, rates)
    worst.check(144 * 2 * 15)


def compare_option(worst: Worst, calls: Calls, expected: dict[str, Any], rates: Rates) -> None:
    parts = calls.parts(rates, np.zeros(1))
    worst.see(float(parts.compute_s[0]) * 1e3, expected["comp_ms"])
    worst.see(float(parts.memory_s[0]) * 1e3, expected["comm_ms"])
    for ours, key in ((calls.flop, "comp_call_flops"), (calls.moved_bytes, "mem_call_bytes")):
        for mine, theirs in zip(sorted(float(c.amount) for c in ours), sorted(expected[key]), strict=True):
            worst.see(mine, theirs)


def test_recovered_algorithms(nets: dict[str, Graph], devices: dict[str, Device], reference_data: Path) -> None:
    """Per-layer algorithms, as recovered from the demo, give the per-layer times that go with them."""
    inferred, worst = reference(reference_data, "cudnn_inferred"), Worst()
    for key, times in inferred["v0_times"].items():
        net, batch = key.split(",")
        chosen = {name: tuple(names) for name, *names in inferred["choices"][key]["choice"]}
        compute = PaleoCompute(device=devices["TITAN_X"], algorithms=chosen)
        for layer, (name, *expected) in zip(nets[net].layers, times["layers"], strict=True):
            assert layer.name == name
            parts = compute.pass_parts(layer, whole(layer, int(batch)), needs_input_gradient=True)
            mine = [
                value
                for part in (parts.forward, parts.backward_input, parts.backward_weight)
                for value in (part.compute_s, part.memory_s)
            ]
            for ours, theirs in zip(mine, expected, strict=True):
                worst.see(float(ours[0]) * 1e3, theirs)
    worst.check(2000)
