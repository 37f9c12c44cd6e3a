"""Array types: what an annotation says about the numbers in an array; its shape stands in the docstring.

All arrays of figures are of 64 bits: a sum of times in 32 bits would already differ between plans that are equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "IntArray"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
