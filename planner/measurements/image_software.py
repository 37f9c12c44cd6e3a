"""What runs the networks for images of a row: its framework, and what the row says otherwise of layout, kernels, weights and input."""

from __future__ import annotations

from costmodel.precision import Precision
from costmodel.software.layer_assumptions import AS_RUN, LayerAssumptions
from planner.measurements.columns import FUSED
from planner.measurements.facts import framework_of_row
from planner.measurements.tables import Row

__all__ = ["image_assumptions"]


def image_assumptions(row: Row, precision: Precision, *, is_one_row: bool) -> LayerAssumptions:
    """What the framework of a row does, and what the row says otherwise.

    Parameters
    ----------
    row : Row
    precision : Precision
    is_one_row : bool
        Images of one row: PyTorch's channels last is a layout of tensors with height and width.
    """
    framework, layout = framework_of_row(row), row.text("layout")
    changes = {"parameter_servers": float(row.flag("parameter_servers") is True)}
    if layout or (is_one_row and framework.name.startswith("pytorch")):
        changes["channels_first"] = float(layout != "channels_last")
    if row.has("fuses"):
        said = row.text("fuses").split("+")
        changes |= {name: float(word in said) for word, name in FUSED.items()}
    if row.text("data") == "real":
        rate, stored = row.number("storage_MBps"), row.number("sample_kB")
        changes |= {"real_input": 1.0}
        changes |= {"storage_bytes_per_s": (rate or 0.0) * 1e6, "stored_sample_bytes": (stored or 0.0) * 1e3}
    return framework.layer_assumptions(precision, assumptions=AS_RUN).changed(changes)
