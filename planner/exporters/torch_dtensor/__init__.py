"""torch: a Python file that splits the user's module over a device mesh, for `torch.distributed.tensor.parallel.parallelize_module`.

A plan with a split per layer becomes DTensor placements of every layer (`layers`), beside styles (`plan_layouts`) where the bundled
ones have none: convolutions split by channels, sums of partial results, switching between batch and channels. A plan over a mesh
becomes the bundled styles and FSDP (`decoder`).
"""

from __future__ import annotations

from functools import singledispatch

from planner.exporters.account import Account
from planner.exporters.job import Job, LayerJob
from planner.exporters.torch_dtensor import decoder, layers

TITLE = "torch"
SUMMARY = "plan.py and its styles, train.sh, train.slurm"
VERSIONS = {"2.13": "torch 2.6 to 2.13; run with 2.13.0 on CPU (gloo)"}
FRAMEWORK = "pytorch-fsdp"
TAKES = frozenset({"mesh", "layers"})
FIELDS = decoder.FIELDS
LAYER_FIELDS = layers.FIELDS


@singledispatch
def refusals(job: object, version: str) -> list[str]:  # noqa: ARG001 - the same for all
    """What torch does not do of a job beside the rules of its framework file; each kind of job has a writer."""
    return []


@refusals.register
def _(job: LayerJob, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    return layers.refusals(job)


@singledispatch
def render(job: object, account: Account, version: str) -> dict[str, str]:
    """Write plan.py and the scripts."""
    raise NotImplementedError(type(job), account, version)


@render.register
def _(job: Job, account: Account, version: str) -> dict[str, str]:
    return decoder.render(job, account, VERSIONS[version])


@render.register
def _(job: LayerJob, account: Account, version: str) -> dict[str, str]:
    return layers.render(job, account, VERSIONS[version])
