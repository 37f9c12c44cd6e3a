"""How sure predicted memory is: the chance that a plan fits, and how much a plan may be predicted to need so that it does.

    log(memory that the run needs / predicted) ~ Normal(mean, log_sd^2)

A run fits if what it needs is at most what the device has. With z the normal quantile of a chance p,

    P(fits) = Phi((log(capacity / predicted) - mean) / log_sd)
    P(fits) >= p  exactly if  predicted <= capacity exp(-(mean + z log_sd))

so that a search for plans that fit with some chance is a search within a limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

# Chance of fitting that a plan needs unless told otherwise.
CONFIDENCE = 0.95
# Errors of a framework without runs of its own.
OTHERS = "others"
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """Errors of the predicted memory of one framework's runs; a normal distribution of natural logarithms.

    Attributes
    ----------
    mean : float
        Of log(needed / predicted).
    log_sd : float
        Its standard deviation, for a network that has not run, above 0.
    rows : int
        Runs that it was found from.
    framework : str
        Whose runs they are; `OTHERS`: of all frameworks that have some.
    ran : float
        Of `OTHERS`: share of the runs with P(fits) of at least `CONFIDENCE` that ran, where errors found without their framework said so.

    Examples
    --------
    Of 80 GB, and a plan of 70 GB, log(80 / 70) = 0.134 is 1.34 standard deviations of 0.1: Phi(1.34) = 0.909.

    >>> errors = MemoryErrors(mean=0.0, log_sd=0.1, rows=30)
    >>> round(errors.probability(70e9, 80e9), 3)
    0.909
    >>> limit = errors.limit_bytes(80e9, 0.95)
    >>> round(limit / 1e9, 1), round(errors.probability(limit, 80e9), 6)
    (67.9, 0.95)
    """

    mean: float
    log_sd: float
    rows: int = 0
    framework: str = ""
    ran: float = 1.0

    @property
    def surest(self) -> float:
        """Largest chance of fitting that the runs can show.

        That n of n runs went well says that the next one does with a chance of (n + 1) / (n + 2): Laplace's rule of succession. Runs of
        other frameworks show what they showed of frameworks that were left out.

        >>> round(MemoryErrors(mean=0.0, log_sd=0.1, rows=30, framework="megatron-bridge").surest, 3)  # 31 / 32
        0.969
        >>> MemoryErrors(mean=0.0, log_sd=0.1, rows=1673, framework=OTHERS, ran=0.909).surest
        0.909
        """
        if self.framework == OTHERS:
            return self.ran
        return (self.rows + 1) / (self.rows + 2) if self.rows else 1.0

    def probability(self, predicted_bytes: float, capacity_bytes: float) -> float:
        """Chance that a plan of predicted bytes fits into a capacity, 0 to 1."""
        if predicted_bytes <= 0.0 or capacity_bytes <= 0.0:
            return float(capacity_bytes > 0.0)
        return _NORMAL.cdf((math.log(capacity_bytes / predicted_bytes) - self.mean) / self.log_sd)

    def limit_bytes(self, capacity_bytes: float, confidence: float) -> float:
        """Most bytes that a plan may be predicted to need to fit with a chance between 0 and 1."""
        return capacity_bytes * math.exp(-self.mean - self.log_sd * _NORMAL.inv_cdf(confidence))
