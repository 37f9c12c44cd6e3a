"""Cases of a long test: a few run by default, all of them under a marker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly(
    marker: str,
    argument: str | tuple[str, ...],
    cases: Iterable[Any],
    *,
    quick: int = 3,
    every: int | None = None,
    ids: Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrise one argument, or several, such that only a few cases are quick.

    Parameters
    ----------
    marker
        ``exact``, ``published``, ``fuzz`` or ``e2e``: which of the runs has all cases.
    argument
        As in ``pytest.mark.parametrize``: a name, or a tuple of them.
    cases
        Cases as in ``pytest.mark.parametrize``.
    quick
        Number of cases without the marker: the first, the last, and others evenly between them.
    every
        Number of cases, from the first on, that the run of the marker has; those after them are run before a release (``release``).
    ids
        As in ``pytest.mark.parametrize``.
    """
    rows = list(cases)
    last = len(rows) - 1
    kept = {round(i * last / max(1, quick - 1)) for i in range(quick)}

    def marked(row: Any, i: int) -> Any:
        mark = getattr(pytest.mark, marker if every is None or i < every else "release")
        if isinstance(row, tuple) and hasattr(row, "marks"):  # made by pytest.param
            return row._replace(marks=(*row.marks, mark))
        return pytest.param(*([row] if isinstance(argument, str) else row), marks=mark)

    return pytest.mark.parametrize(
        argument, [row if i in kept else marked(row, i) for i, row in enumerate(rows)], ids=ids
    )
