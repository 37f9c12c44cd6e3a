"""What a calibration says of the constants: their factors, how sure these are, and what they leave unexplained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.uncertainty.constants import ConstantError, check_name
from costmodel.uncertainty.intervals import ErrorModel

__all__ = ["CalibratedConstant", "Calibration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedConstant:
    """A factor after a fit.

    Attributes
    ----------
    value, log_sd : float
        The factor, and how sure it is (standard deviation of its logarithm).
    prior, prior_log_sd : float
        The same before the measurements.
    determined : bool
        Whether the measurements said more than the prior.
    """

    value: float = 1.0
    log_sd: float
    prior: float = 1.0
    prior_log_sd: float
    determined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors with their uncertainty, and what they leave unexplained.

    Attributes
    ----------
    name : str
    constants : mapping of str to CalibratedConstant
        Every name is one of `CONSTANTS`; those that are absent stay 1 with the prior of `CONSTANTS`.
    correlation : array (n, n)
        Of the logarithms, in the order of ``constants``.
    residual_log_sd : float
        Standard deviation of log(measured / predicted) that no constant explains.
    residual_by_part : mapping of str to float
        The same for parts of the data.
    residual_groups : int, optional
        Networks whose training steps that was found from; 0: none, so that it says nothing about steps. None: it is as stated.
    framework : str
        Name of the framework whose costs (`costmodel.framework`) the factors multiply; empty: a well-tuned implementation.
    assumed : mapping of str to float
        Assumptions of the cost model that the runs had in place of the framework's: waits of one cluster, say.
    error_models : mapping of str to ErrorModel
        What else is uncertain, by kind of workload; empty: as the bundled calibration has it, updated by ``residual_log_sd``.

    Raises
    ------
    ConstantError
        An unknown constant, or a matrix of another shape.
    """

    name: str
    constants: Mapping[str, CalibratedConstant]
    correlation: FloatArray
    residual_log_sd: float
    residual_by_part: Mapping[str, float]
    residual_groups: int | None = None
    framework: str = ""
    assumed: Mapping[str, float] = field(default_factory=dict)
    error_models: Mapping[str, ErrorModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the names and the shape; make the mappings read-only."""
        for name in self.constants:
            check_name(name)
        size = len(self.constants)
        if self.correlation.shape != (size, size):
            raise ConstantError(f"the correlation is {self.correlation.shape}, expected ({size}, {size})")
        for name in ("constants", "residual_by_part", "assumed", "error_models"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def values(self) -> dict[str, float]:
        """Name -> factor, for `with_constants`."""
        return {name: constant.value for name, constant in self.constants.items()}

    @property
    def covariance(self) -> FloatArray:
        """Of the logarithms of the factors, in the order of ``constants``."""
        log_sd = np.array([constant.log_sd for constant in self.constants.values()])
        return np.asarray(self.correlation * np.outer(log_sd, log_sd))
