"""Constants that predictions use and that measurements chose are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.hardware.efficiency import Efficiency
from planner.files.loading import load_device
from planner.files.naming.frameworks import framework_of
from planner.measurements.fitted import _OF_STEPS, _ONLY, fitted_of
from planner.measurements.kinds import recognise
from planner.measurements.outcomes import Outcome, Preset
from planner.measurements.tables import read_table


def test_what_was_fitted_to_runs_of_a_framework_counts() -> None:
    nanotron = framework_of("nanotron")
    device = load_device("h100-sxm").device
    counted = {
        name for name in fitted_of(device, nanotron.mesh_assumptions(), nanotron) if name.startswith("nanotron: ")
    }
    assert counted == {"nanotron: host_collective_s"}


def test_constants_of_other_layers_are_not_counted() -> None:
    """Products alone have no convolution, no attention and no step; a step of a network for images has no attention."""
    device = load_device("p100").device
    everything = fitted_of(device)
    product = fitted_of(device, kinds=frozenset(["linear"]), alone=True)
    assert {"winograd_fraction", "thin_tile", "attention_fraction", "sustained_fraction"} <= everything - product
    assert "vector_tile" in product
    images = fitted_of(device, kinds=frozenset(["convolution", "linear", "pool"]))
    assert everything - images == {"attention_fraction", "attention_backward_fraction"}


def test_what_was_picked_for_some_devices_counts_on_these() -> None:
    nemo, device = framework_of("NeMo"), load_device("b200").device
    both = [fitted_of(device, nemo.mesh_assumptions(has_fp4=has_fp4), nemo) for has_fp4 in (True, False)]
    assert both[0] - both[1] == {"megatron-bridge: captured"}


_A_RUN = "gpt", "2048", "24", "16", "a100-80gb", "bf16", "16", "2", "8", "128", "1500"
_TABLES = {
    "gemm": "device,precision,m,n,k,time_ms\np100,fp32,512,512,512,0.1\na100-80gb,bf16,35,700,2048,0.1\n",
    "convolution": "device,precision,n,c,h,w,k,r,s,pad_h,pad_w,fwd_ms,bwd_input_ms,bwd_param_ms\n"
    "p100,fp32,16,64,56,56,128,3,3,1,1,1.2,1.3,1.4\n",
    "recurrent": "device,precision,cell,hidden,batch,timesteps,fwd_ms,bwd_input_ms,bwd_weight_ms\np100,fp32,LSTM,1024,32,25,5.1,5.0,1.2\n",
    "measured": "kernel,device,precision,pass_,op,batch,hidden,heads,head_dim,seq,time_ms\n"
    "attention,a100-80gb,bf16,forward,,4,,16,128,2048,0.35\nelementwise,a100-80gb,bf16,forward,gelu,8192,4096,,,,0.09\n",
    "plan": f"style,hidden,layers,heads,device,precision,gpus,tp,dp,global_batch,step_time_ms\n{','.join(_A_RUN)}\n",
    "network": "model,device,precision,gpus,global_batch,step_time_ms\nresnet50,p100,fp32,4,128,300\n",
}


@pytest.mark.parametrize("kind", _TABLES)
def test_constants_that_are_not_counted_change_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(_TABLES[kind])

    def outcomes(*changed: tuple[str, float]) -> list[Outcome]:
        table = read_table(path)
        found = recognise(table)
        assert found.name == kind
        return found.predictor()(table.rows, Preset(name="roofline", efficiency=changed))

    before = outcomes()
    counted = {name.rsplit(": ", 1)[-1] for outcome in before for name in outcome.fitted}
    for name in sorted({*(n for n in _ONLY if n in Efficiency.__dataclass_fields__), *_OF_STEPS} - counted):
        after = outcomes((name, 0.3))
        times = [[c.predicted_s for outcome in found for c in outcome.comparisons] for found in (before, after)]
        assert times[0]
        assert times[0] == times[1], name
