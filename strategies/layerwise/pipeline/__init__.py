"""Contiguous pipeline stages with replicas and micro-batches, chosen exactly by dynamic programming."""

from strategies.layerwise.pipeline.completion import UpstreamTable, build_upstream
from strategies.layerwise.pipeline.problem import (
    InvalidPartitionError,
    PartitionProblem,
    PipelinePlan,
    PipelineSolution,
    objective_s,
    pipeline_lower_bound,
    stage_memory_bytes,
    stage_times_s,
)
from strategies.layerwise.pipeline.search import solve_pipeline

__all__ = [
    "InvalidPartitionError",
    "PartitionProblem",
    "PipelinePlan",
    "PipelineSolution",
    "UpstreamTable",
    "build_upstream",
    "objective_s",
    "pipeline_lower_bound",
    "solve_pipeline",
    "stage_memory_bytes",
    "stage_times_s",
]
