"""Schemas of the files that people write, and of the results that programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.core.request import imported

if TYPE_CHECKING:
    from pydantic import BaseModel

# Document -> where its pydantic model lives; imported when asked for, because making models takes time.
DOCUMENTS: dict[str, str] = {
    "model": "planner.schema.model:NetworkFile",
    "device": "planner.schema.device:DeviceFile",
    "cluster": "planner.schema.cluster:ClusterFile",
    "framework": "planner.schema.framework:FrameworkFile",
    "calibration": "planner.schema.calibration:CalibrationFile",
    "failure": "planner.schema.failures:FailuresFile",
    "algorithms": "planner.schema.plan:AlgorithmsFile",
    "plan": "planner.schema.plan:PlanDocument",
    "result": "planner.schema.answer:AnyResult",
    "breakdown": "planner.schema.answer:AnyBreakdown",
    "compare": "planner.schema.results:CompareDocument",
    "why-not": "planner.schema.results:WhyNotDocument",
    "check": "planner.schema.results:AnyCheck",
    "scale": "planner.schema.answer:ScaleDocument",
    "sweep": "planner.schema.results:SweepDocument",
    "size": "planner.schema.results:SizeDocument",
    "fleet": "planner.schema.results:FleetDocument",
    "validation": "planner.schema.results:ValidationDocument",
    "measure": "planner.schema.results:MeasureDocument",
    "detect": "planner.schema.results:DetectDocument",
    "calibrate": "planner.schema.results:CalibrationResult",
    "place": "planner.schema.results:AnyPlacement",
    "list": "planner.schema.results:ListDocument",
    "show": "planner.schema.results:ShowDocument",
}


def schema_of(document: str) -> type[BaseModel]:
    """Pydantic model of a kind of document.

    Raises
    ------
    KeyError
        No such document.
    """
    model: type[BaseModel] = imported(DOCUMENTS[document])
    return model


def json_schema(document: str) -> dict[str, Any]:
    """JSON Schema of a kind of document, for editors and programs.

    Examples
    --------
    >>> json_schema("model")["title"]
    'NetworkFile'
    """
    from planner.schema.common import WholeJsonSchema

    schema = schema_of(document).model_json_schema(by_alias=True, schema_generator=WholeJsonSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
