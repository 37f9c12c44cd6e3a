"""An optimizing planner for distributed deep learning: command line, files, reports and a Python interface.

What Python programs use is imported on first use, so that ``import planner`` stays quick; docs/python.md shows it.

Examples
--------
>>> import planner
>>> result = planner.optimize("alexnet", gpus=16)
>>> result.proven, result.best.step_time_s <= 1.01 * result.bound
(True, True)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api.bundle import (
        Listing,
        list_calibrations,
        list_clusters,
        list_collectives,
        list_devices,
        list_exporters,
        list_failures,
        list_frameworks,
        list_importers,
        list_models,
        list_precisions,
        list_schedules,
        load_cluster,
        load_device,
        load_model,
    )
    from planner.api.calls import Interrupted
    from planner.api.checking import Check, ServerCheck, check
    from planner.api.comparison import Comparison, compare
    from planner.api.exports import Export, export
    from planner.api.placement import Placement, place
    from planner.api.plans import Plan
    from planner.api.questions import estimate, explain, optimize, scale, why_not
    from planner.api.results import Estimate, Explanation, ScalingCurve, SearchResult, WhyNot
    from planner.api.studies import FleetSizing, Sizing, Sweep, size, size_fleet, sweep
    from planner.api.validation import Validation, validate
    from planner.core.errors import (
        InputFileError,
        LimitReached,
        NoFeasiblePlan,
        OutputError,
        PlannerError,
        UnknownName,
        UsageError,
    )
    from planner.importers.torch_program import from_torch

__all__ = [
    "Check",
    "Comparison",
    "Estimate",
    "Explanation",
    "Export",
    "FleetSizing",
    "InputFileError",
    "Interrupted",
    "LimitReached",
    "Listing",
    "NoFeasiblePlan",
    "OutputError",
    "Placement",
    "Plan",
    "PlannerError",
    "ScalingCurve",
    "SearchResult",
    "ServerCheck",
    "Sizing",
    "Sweep",
    "UnknownName",
    "UsageError",
    "Validation",
    "WhyNot",
    "__version__",
    "check",
    "compare",
    "estimate",
    "explain",
    "export",
    "from_torch",
    "list_calibrations",
    "list_clusters",
    "list_collectives",
    "list_devices",
    "list_exporters",
    "list_failures",
    "list_frameworks",
    "list_importers",
    "list_models",
    "list_precisions",
    "list_schedules",
    "load_cluster",
    "load_device",
    "load_model",
    "optimize",
    "place",
    "scale",
    "size",
    "size_fleet",
    "sweep",
    "validate",
    "why_not",
]

__version__ = "0.1.0"

# Module -> names that it has for Python programs.
_MODULES = {
    "planner.api.bundle": (
        "Listing",
        "list_calibrations",
        "list_clusters",
        "list_collectives",
        "list_devices",
        "list_exporters",
        "list_failures",
        "list_frameworks",
        "list_importers",
        "list_models",
        "list_precisions",
        "list_schedules",
        "load_cluster",
        "load_device",
        "load_model",
    ),
    "planner.api.checking": ("Check", "ServerCheck", "check"),
    "planner.api.comparison": ("Comparison", "compare"),
    "planner.api.exports": ("Export", "export"),
    "planner.api.placement": ("Placement", "place"),
    "planner.api.plans": ("Plan",),
    "planner.api.questions": ("estimate", "explain", "optimize", "scale", "why_not"),
    "planner.api.results": ("Estimate", "Explanation", "ScalingCurve", "SearchResult", "WhyNot"),
    "planner.api.studies": ("FleetSizing", "Sizing", "Sweep", "size", "size_fleet", "sweep"),
    "planner.api.validation": ("Validation", "validate"),
    "planner.api.calls": ("Interrupted",),
    "planner.core.errors": (
        "InputFileError",
        "LimitReached",
        "NoFeasiblePlan",
        "OutputError",
        "PlannerError",
        "UnknownName",
        "UsageError",
    ),
    "planner.importers.torch_program": ("from_torch",),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'planner' has no attribute '{name}'")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
