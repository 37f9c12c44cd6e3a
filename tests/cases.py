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
    ids
        As in ``pytest.mark.parametrize``.
    """
    rows = list(cases)
    last = len(rows) - 1
    kept = {round(i * last / max(1, quick - 1)) for i in range(quick)}
    mark = getattr(pytest.mark, marker)

    def marked(row: Any) -> Any:
        if isinstance(row, tuple) and hasattr(row, "marks"):  # made by pytest.param
            return row._replace(marks=(*row.marks, mark))
        return pytest.param(*([row] if isinstance(argument, str) else row), marks=mark)

    return pytest.mark.parametrize(argument, [row if i in kept else marked(row) for i, row in enumerate(rows)], ids=ids)
