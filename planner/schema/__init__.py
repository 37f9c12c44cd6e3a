"""Schemas of the files that people write, and of the results that programs read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["DOCUMENTS", "json_schema", "schema_of"]

# Document -> where its pydantic model lives; imported when asked for, because making models takes time.
DOCUMENTS: dict[str, tuple[str, str]] = {
    "model": ("planner.schema.model", "NetworkFile"),
    "device": ("planner.schema.device", "DeviceFile"),
    "cluster": ("planner.schema.cluster", "ClusterFile"),
    "calibration": ("planner.schema.calibration", "CalibrationFile"),
    "algorithms": ("planner.schema.algorithms", "AlgorithmsFile"),
    "plan": ("planner.schema.plan", "PlanDocument"),
    "result": ("planner.schema.answer", "AnyResult"),
    "breakdown": ("planner.schema.answer", "AnyBreakdown"),
    "compare": ("planner.schema.comparison_result", "CompareDocument"),
    "scale": ("planner.schema.result", "ScaleDocument"),
    "sweep": ("planner.schema.sweep_result", "SweepDocument"),
    "size": ("planner.schema.size_result", "SizeDocument"),
    "validation": ("planner.schema.validation_result", "ValidationDocument"),
    "measure": ("planner.schema.machine_result", "MeasureDocument"),
    "detect": ("planner.schema.machine_result", "DetectDocument"),
    "calibrate": ("planner.schema.calibration_result", "CalibrationResult"),
    "place": ("planner.schema.place_result", "AnyPlacement"),
    "list": ("planner.schema.result", "ListDocument"),
}


def schema_of(document: str) -> type[BaseModel]:
    """Pydantic model of a kind of document.

    Raises
    ------
    KeyError
        No such document.
    """
    module, name = DOCUMENTS[document]
    model: type[BaseModel] = getattr(importlib.import_module(module), name)
    return model


def json_schema(document: str) -> dict[str, Any]:
    """JSON Schema of a kind of document, for editors and programs.

    Examples
    --------
    >>> json_schema("model")["title"]
    'NetworkFile'
    """
    from planner.schema.lazy_union import WholeJsonSchema

    schema = schema_of(document).model_json_schema(by_alias=True, schema_generator=WholeJsonSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
