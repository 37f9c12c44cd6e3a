"""Which optimizer people mean."""

import pytest

from planner.core.errors import UnknownName
from planner.core.request import Request
from planner.files.naming.optimizers import optimizer_called
from planner.question.resolve import resolve


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("adamw", "adam"), ("AdamW", "adam"), ("adamw_torch", "adam"), ("adamw_torch_fused", "adam"), ("FusedAdam", "adam"),
        ("DeepSpeedCPUAdam", "adam"), ("adamw-8bit", "adam-8bit"), ("adamw_bnb_8bit", "adam-8bit"), ("AdamW4bit", "adam-4bit"),
        ("adamw_torch_4bit", "adam-4bit"), ("adamw-bf16", "adam-bf16"), ("adamw-fp32", "adam"), ("sgd", "sgd"), ("Nesterov", "momentum"),
        ("OneBitAdam", None), ("lion", None), ("adafactor", None), ("", None),
    ],
)  # fmt: skip
def test_names_of_trainers(text: str, name: str | None) -> None:
    assert optimizer_called(text) == name


def test_a_question_is_the_same_by_any_name() -> None:
    named = [resolve(Request(model="llama3-8b", gpus=8, optimizer=name)) for name in ("adam", "adamw")]
    assert named[0].workload == named[1].workload
    assert named[1].setting.optimizer == "adam"
    with pytest.raises(UnknownName, match="optimizer 'adamx' is not known; did you mean 'adam'"):
        resolve(Request(model="llama3-8b", gpus=8, optimizer="adamx"))
