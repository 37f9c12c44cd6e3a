"""Tolerances: how close two numbers must be to count as one.

A double has a relative precision of u = 2^-53 = 1.1e-16. A sum of n positive terms is off by at most (n - 1) u, relatively, so two sums
of the same terms in different orders differ by at most 2 (n - 1) u (Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
section 4.2). Differences of such sums lose as many digits as cancel. Everything here is relative unless it says otherwise.

How long a method tries (where a bisection ends, which gain is worth another turn) is no tolerance; it stands with its method.
"""

from __future__ import annotations

# The same terms, added in another order: 2 n u for the 4,500 terms of a deep network. A part of a sum below this share is rounding.
ROUNDING = 1e-12
# Prefix sums and their differences, where up to a tenth of the digits cancel: 45,000 terms.
LONG_SUM_ROUNDING = 1e-11
# One figure from two formulas, or a difference of nearly equal numbers: three more digits may be lost than in a sum. A plan that is
# better by less is not better.
EQUAL = 1e-9
# A bound so close to the value of a plan proves that the plan is the best. Bounds and values come from different formulas.
PROOF_SLACK = EQUAL
# HiGHS's tolerances of rows, reduced costs and integrality, (it takes 1e-10 at the finest). Absolute: callers scale their numbers.
SOLVER_TOLERANCE = 1e-9
# A bound of a mixed-integer program is lowered by this before anything is called proven: its objective is scaled to about 1, and
# hundreds of rows, each kept up to an absolute tolerance, add up.
SOLVER_BOUND_SLACK = 5e-7
# A linear program confirms a step time that was found otherwise within this; its tolerances are absolute.
CONFIRMED = 1e-6
# Column generation: a column whose reduced cost is below this cannot improve the program (absolute; prices add up to about 1).
REDUCED_COST = 1e-7
# The public format of placement problems prints costs per edge: those of one source's edges, and claims and recomputed values,
# may differ by this.
PRINTED_COST = 1e-6
