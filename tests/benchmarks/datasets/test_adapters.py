"""Rows of runs that train adapters: by which words they are known, and what they do not do."""

from __future__ import annotations

import pytest

from benchmarks.datasets.reading import Row
from benchmarks.datasets.runs import says_adapters
from tests.benchmarks.datasets.published_rows import run, seconds


@pytest.mark.parametrize(
    ("cells", "adapters"),
    [
        ({"notes": "task=LoRA; lora_rank=8"}, True),
        ({"task": "LoRA"}, True),
        ({"method": "QLoRA (nf4)"}, True),
        ({"model": "Llama 2 7B fine-tuning (LoRA)"}, True),
        ({"dataset_group": "24.07|LoRA"}, True),
        ({"method": "full fine-tuning", "model": "lorax"}, False),
        ({"notes": "task=SFT", "dataset_group": "LoRA against SFT"}, False),
        ({"model": "explorable"}, None),
        ({"method": "DoRA"}, True),
        ({"lora_rank": "16"}, True),
        *(({"method": text}, None) for text in ("no_lora", "no LoRA", "without adapters", "w/o LoRA", "non-LoRA")),
    ],
)
def test_words_of_adapters(cells: dict[str, str], adapters: bool | None) -> None:
    assert says_adapters(Row(line=2, cells=cells)) is adapters


def test_adapters_of_a_network_that_only_its_name_says() -> None:
    """A backward pass without gradients of weights: two thirds of the work."""
    cells = {
        "net": "",
        "hidden": "",
        "layers": "",
        "heads": "",
        "seq": "4096",
        "recompute": "none",
        "step_time_ms": "20000",
    }
    whole, adapters = (run(**cells, model="llama2-13b", task=task) for task in ("SFT", "LoRA"))
    spelled = run(
        **{**cells, "hidden": "5120", "layers": "40", "heads": "40"},
        model="llama2-13b",
        ffn="13824",
        task="LoRA",
        vocab="32000",
    )
    assert seconds(adapters) == seconds(spelled)
    assert 0.55 < seconds(adapters) / seconds(whole) < 0.85


def test_recipes_that_adapt_every_product_of_a_block() -> None:
    """Adapters of Hugging Face's recipes stand beside all products, those of NeMo beside three: more to compute."""
    cells = {"net": "", "hidden": "", "layers": "", "heads": "", "seq": "4096", "recompute": "none"}
    cells["step_time_ms"] = "20000"
    few, all_ = (run(**cells, model="llama2-13b", task="LoRA", framework=name) for name in ("a trainer", "XTuner"))
    assert 1.01 < seconds(all_) / seconds(few) < 1.5


@pytest.mark.parametrize("model", ["mixtral-8x7b", ""], ids=["by its name", "by its shape"])
def test_adapters_of_a_mixture_leave_its_experts_as_they_are(model: str) -> None:
    """A backward pass without gradients of weights: two thirds of the work, and no exchange of gradients of experts."""
    shape = {
        "hidden": "4096",
        "layers": "32",
        "heads": "32",
        "kv_heads": "8",
        "ffn": "14336",
        "experts": "8",
        "top_k": "2",
    }
    cells = dict.fromkeys(shape, "") if model else shape
    cells |= {
        "net": "llama",
        "seq": "4096",
        "ep": "8",
        "tp": "1",
        "pp": "1",
        "cp": "1",
        "dp": "",
        "step_time_ms": "20000",
    }
    whole, adapters = (run(**cells, model=model, task=task) for task in ("SFT", "LoRA"))
    assert seconds(adapters) < 0.8 * seconds(whole)
