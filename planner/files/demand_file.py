"""How many requests come over a day or a week: a CSV file of hours and rates.

::

    hour,rate_per_s
    0,12
    1,8.5
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from planner.core.errors import FileProblem, InputFileError
from planner.files.request_trace import column_of
from planner.files.text import failure, read_text

# A year.
_MOST_HOURS = 8_784


def read_demand(path: Path) -> tuple[float, ...]:
    r"""Read requests per second, one number per hour, in order.

    Raises
    ------
    InputFileError
        The file cannot be read, has other columns, hours that do not follow each other, a rate that is no number of at least 0, or no
        hour in which requests come.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "day.csv")
    >>> _ = file.write_text("hour,rate_per_s\n0,12\n1,8.5\n")
    >>> read_demand(file)
    (12.0, 8.5)
    """
    text, _ = read_text(path, what="a curve of demand")
    reader = csv.DictReader(io.StringIO(text))
    names = reader.fieldnames or ()
    if not {"hour", "rate_per_s"} <= set(names):
        raise failure(
            path, f"has the columns {', '.join(map(str, names))}; a curve of demand has hour and rate_per_s", 1, 1
        )
    rates: list[float] = []
    problems, lines = [], text.splitlines()
    for row in reader:
        hour, rate = _number(row["hour"]), _number(row["rate_per_s"])
        wrong = {"hour": f"must be {len(rates)}, the next hour of the file"} if hour != len(rates) else {}
        wrong |= {} if rate >= 0 else {"rate_per_s": "must be a number of at least 0"}
        for name, words in wrong.items():
            column = column_of(lines, reader.line_num, name, names)
            problems.append(
                FileProblem(path=path, line=reader.line_num, column=column, message=f"{name} {row[name]}: {words}")
            )
        rates.append(rate)
        if len(rates) > _MOST_HOURS:
            raise failure(path, f"has more than {_MOST_HOURS:,} hours, a year", reader.line_num, 1)
    if problems:
        raise InputFileError(problems)
    if not any(rates):
        raise failure(path, "has no hour in which requests come", 1, 1)
    return tuple(rates)


def _number(text: str | None) -> float:
    try:
        found = float(text or "")
    except ValueError:
        return math.nan
    return found if math.isfinite(found) else math.nan
