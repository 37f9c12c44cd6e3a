"""Writers of what a trainer or server needs to start with a plan. To add one, write a module with the names of `Exporter` and list it here.

An exporter says of every setting of a plan where it is written, or why it cannot be (`planner.exporters.account`), which combinations the
target refuses, and makes the files' texts; `planner.exporters.export` puts the pieces together and writes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from planner.core.errors import UnknownName

if TYPE_CHECKING:
    from planner.exporters.account import Account

# Target -> module, imported on first use.
EXPORTERS: dict[str, str] = {
    "torch": "planner.exporters.torch_dtensor",
    "megatron": "planner.exporters.megatron",
    "megatron-bridge": "planner.exporters.megatron_bridge",
    "torchtitan": "planner.exporters.torchtitan",
    "deepspeed": "planner.exporters.deepspeed",
    "accelerate": "planner.exporters.accelerate",
    "nanotron": "planner.exporters.nanotron",
    "vllm": "planner.exporters.vllm",
    "sglang": "planner.exporters.sglang",
    "tensorrt-llm": "planner.exporters.tensorrt_llm",
}

# What starts through one of these: NeMo 2 trains on Megatron-Bridge, Transformers' Trainer on Accelerate, FSDP2 and DTensor are torch's.
TARGETS_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("nemo", "nemo2", "bridge"), "megatron-bridge"),
    **dict.fromkeys(("megatron-lm", "megatron-core", "mcore"), "megatron"),
    **dict.fromkeys(("transformers", "huggingface", "hf", "trainer"), "accelerate"),
    **dict.fromkeys(("pytorch", "fsdp", "fsdp2", "dtensor"), "torch"),
    **dict.fromkeys(("trtllm", "trt-llm"), "tensorrt-llm"),
    **dict.fromkeys(("dynamo", "llm-d"), "vllm"),  # whose export has the manifests
}


class Exporter(Protocol):
    """What a module of this package offers.

    Attributes
    ----------
    TITLE : str
        Name of the program, for people.
    SUMMARY : str
        What is written.
    VERSIONS : mapping
        Version of the program that files can be written for -> the source that its settings were checked against; the first is the default.
    FRAMEWORK : str
        The framework file whose rules say what it runs and expresses.
    TAKES : frozenset of str
        Kinds of plans: "mesh", "layers" (any split per layer), "data" (data parallelism of any network), "serving".
    refusals : function of (job, version) to list of str, optional
        What the program refuses beside the rules of its framework; ``job`` is what TAKES says: Job, LayerJob or ServingJob.
    FIELDS : mapping
        Every setting (`planner.exporters.account`) -> where it is written, or "-" and why it cannot be; the table of docs/export.md.
    """

    TITLE: str
    SUMMARY: str
    VERSIONS: Mapping[str, str]
    FRAMEWORK: str
    TAKES: frozenset[str]
    FIELDS: Mapping[str, str]

    def render(self, job: Any, account: Account, version: str) -> dict[str, str]:
        """Write the files, by name; ``account`` takes where each setting went."""
        ...


def exporter_of(target: str) -> Exporter:
    """Find an exporter by its name.

    Raises
    ------
    UnknownName

    Examples
    --------
    >>> exporter_of("deepspeed").TITLE
    'DeepSpeed'
    """
    if target not in EXPORTERS:
        raise UnknownName(kind="target", name=target, known=EXPORTERS, hint="list them: planner list exporters")
    return cast("Exporter", importlib.import_module(EXPORTERS[target]))


def targets_that_take(kind: str) -> list[str]:
    """Names of the targets for a kind of plan.

    >>> targets_that_take("serving")
    ['vllm', 'sglang', 'tensorrt-llm']
    """
    return [target for target in EXPORTERS if kind in exporter_of(target).TAKES]


def target_for(framework: str) -> str:
    """The target that writes a framework's launch files; "" where none does.

    >>> target_for("megatron-lm"), target_for("caffe")
    ('megatron', '')
    """
    if not framework:  # exporters bring all of the cost model
        return ""
    return next((target for target in EXPORTERS if framework == exporter_of(target).FRAMEWORK), "")


def exporter_rows() -> list[dict[str, Any]]:
    """Every target, for `planner list exporters`."""
    return [
        {
            "name": target,
            "program": exporter.TITLE,
            "versions": ", ".join(exporter.VERSIONS),
            "plans": ", ".join(sorted(exporter.TAKES)),
            "description": exporter.SUMMARY,
        }
        for target, exporter in zip(EXPORTERS, map(exporter_of, EXPORTERS), strict=True)
    ]
