"""Traces of requests that were served: when each came, and how long its prompt and its answer were.

CSV with a header, or JSON lines. Names of the columns as the planner calls them, or as public traces do::

    arrival_s,prompt_tokens,output_tokens
    0.0,812,230
    0.4,1507,96

What prompts found in a cache of earlier ones is read, too: ``cached_tokens``, or the names of blocks of 512 tokens in Mooncake's traces.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from costmodel.serving.prefix_cache import Prompts
from planner.core.errors import FileProblem, InputFileError
from planner.files.text import read_text

MAX_BYTES = 512 * 2**20
_MOST_PROBLEMS = 20


class _Columns(NamedTuple):
    """What a kind of trace calls the time of arrival, the tokens of the prompt and of the answer."""

    arrival: str
    prompt: str
    output: str
    seconds: float | None  # of a unit of the time; None: it is a date
    of: str
    cached: str = ""  # tokens of the prompt that a cache had
    blocks: str = ""  # names of its blocks


_KINDS = (
    _Columns("arrival_s", "prompt_tokens", "output_tokens", 1.0, "the planner", cached="cached_tokens"),
    _Columns("timestamp", "input_length", "output_length", 1e-3, "Mooncake (FAST 2025), aiperf", blocks="hash_ids"),
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", None, "Azure LLM inference traces of 2023 and 2024"),
    _Columns("Timestamp", "Request tokens", "Response tokens", 1.0, "BurstGPT"),
)
# Tokens of a block of Mooncake's traces (FAST25-release of kvcache-ai/Mooncake, README).
_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """What a trace says of the requests.

    Attributes
    ----------
    requests : int
    rate_per_s : float
        Requests per second from the first to the last.
    arrival_cv, prompt_cv, output_cv : float
        Coefficients of variation: of the times between requests, of the lengths of prompts and of answers.
    prompt_tokens, output_tokens : int
        Mean lengths, rounded.
    prefix_cached : float or None
        Share of the tokens of prompts that a cache of earlier ones had, or that one without limits would have had; None: not said.
    prompts : Prompts or None
        Blocks of the prompts, where the trace names them.
    """

    requests: int
    rate_per_s: float
    arrival_cv: float
    prompt_tokens: int
    prompt_cv: float
    output_tokens: int
    output_cv: float
    prefix_cached: float | None = None
    prompts: Prompts | None = None


def read_request_trace(path: Path) -> RequestTrace:
    r"""Read a trace. Requests without an answer (0 tokens) failed, and are left out.

    Raises
    ------
    InputFileError
        The file cannot be read, has other columns, a cell is no number, requests are out of order, or there are fewer than two.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "trace.csv")
    >>> _ = file.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,300,10\n2,200,10\n")
    >>> trace = read_request_trace(file)
    >>> trace.rate_per_s, trace.arrival_cv, trace.prompt_tokens, round(trace.prompt_cv, 3), trace.output_cv
    (1.0, 0.0, 200, 0.408, 0.0)
    """
    text, _ = read_text(path, MAX_BYTES, "a trace of requests")
    problems: list[FileProblem] = []
    kind, found, before, cached, blocks = None, [], -math.inf, 0.0, list[tuple[int, ...]]()
    lines = text.splitlines()
    for line, row in _rows(path, text):
        if kind is None:
            kind = _kind_of(path, line, row)
        try:
            arrival = _cell(row, kind.arrival, partial(_time, seconds=kind.seconds))
            prompt, output = (_cell(row, name, _length) for name in (kind.prompt, kind.output))
            known, names = _cached_of(row, kind, prompt), _blocks_of(row, kind)
            earlier, before = before, arrival
            if arrival < earlier:
                raise _CellError(kind.arrival, row, "comes before the request above it; sort the file by time")
        except _CellError as error:
            column = column_of(lines, line, error.name, list(row))
            problems.append(FileProblem(path=path, line=line, column=column, message=str(error)))
            continue
        if output > 0:
            found.append((arrival, prompt, output))
            blocks.append(names)
            cached += known
        if len(problems) == _MOST_PROBLEMS:
            break
    if not problems and (len(found) < 2 or found[-1][0] <= found[0][0]):
        problems = [FileProblem(path=path, line=1, column=1, message="needs at least two requests, at different times")]
    if problems:
        raise InputFileError(problems)
    return _summary(np.array(found, dtype=np.float64), cached, blocks)


def _rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Lines with their numbers, as mappings."""
    if text.lstrip().startswith("{"):
        for line, words in enumerate(text.splitlines(), 1):
            if words.strip():
                try:
                    row = json.loads(words)
                except (ValueError, RecursionError):
                    row = None
                if not isinstance(row, dict):
                    raise InputFileError([FileProblem(path=path, line=line, column=1, message="is no JSON object")])
                yield line, row
        return
    reader = csv.DictReader(io.StringIO(text))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputFileError(
            [FileProblem(path=path, line=reader.line_num, column=1, message=f"is no CSV: {error}")]
        ) from None


def _kind_of(path: Path, line: int, row: Mapping[str, Any]) -> _Columns:
    for kind in _KINDS:
        if {kind.arrival, kind.prompt, kind.output} <= set(row):
            return kind
    known = "; ".join(f"{k.arrival}, {k.prompt}, {k.output} ({k.of})" for k in _KINDS)
    raise InputFileError(
        [
            FileProblem(
                path=path,
                line=1 if line == 2 else line,
                column=1,
                message=f"has other columns than a trace of requests: {known}",
            )
        ]
    )


class _CellError(ValueError):
    """What is wrong with a value of a row."""

    def __init__(self, name: str, row: Mapping[str, Any], words: object, *, shows: bool = True) -> None:
        super().__init__(f"{name} {row[name]}: {words}" if shows else f"{name}: {words}")
        self.name = name


def column_of(lines: Sequence[str], line: int, name: str, names: Sequence[str | None]) -> int:
    """Where a value stands in its line; 1 where the line has none.

    >>> column_of(["hour,day,rate", '0,"1,000",x'], 2, "rate", ["hour", "day", "rate"])
    11
    >>> column_of(['{"timestamp": 0, "input_length": true}'], 1, "input_length", ["timestamp", "input_length"])
    34
    """
    text = lines[line - 1] if line <= len(lines) else ""
    if text.lstrip().startswith("{"):
        found = re.search(rf"{re.escape(json.dumps(name))}\s*:\s*", text)
        return found.end() + 1 if found else 1
    cells = [cell.start() for cell in re.finditer(r'(?:^|(?<=,))(?:"(?:[^"]|"")*"|[^,]*)', text)]
    number = names.index(name)
    return cells[number] + 1 if number < len(cells) else 1


def _cell(row: Mapping[str, Any], name: str, read: Callable[[Any], float]) -> float:
    if row.get(name) in (None, ""):
        raise _CellError(name, row, "is missing", shows=False)
    try:
        return read(row[name])
    except ValueError as error:
        raise _CellError(name, row, error) from None


def _time(value: Any, seconds: float | None) -> float:
    if seconds is None:
        try:
            return dt.datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            raise ValueError("must be a date and time such as 2024-05-10 00:00:00.009930") from None
    return _number(value) * seconds


def _length(value: Any) -> float:
    length = _number(value)
    if length < 0 or length != int(length):
        raise ValueError("must be a number of tokens")
    return length


def _cached_of(row: Mapping[str, Any], kind: _Columns, prompt: float) -> float:
    """Tokens of a prompt that a cache had; 0 where nobody says it."""
    if not kind.cached or row.get(kind.cached) in (None, ""):
        return 0.0
    found = _cell(row, kind.cached, _length)
    if found > prompt:
        raise _CellError(kind.cached, row, f"is more than the prompt has, {prompt:.0f}")
    return found


def _blocks_of(row: Mapping[str, Any], kind: _Columns) -> tuple[int, ...]:
    """Names of the blocks of a prompt; none where they are not known."""
    names = row.get(kind.blocks) or [] if kind.blocks else []
    if not isinstance(names, list) or not all(isinstance(name, int) for name in names):
        raise _CellError(kind.blocks, row, "must be a list of whole numbers", shows=False)
    return tuple(names)


def _number(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found):
        raise ValueError("must be a number")
    return found


def _summary(
    requests: np.ndarray[Any, np.dtype[np.float64]], cached: float, blocks: list[tuple[int, ...]]
) -> RequestTrace:
    arrival, prompt, output = requests.T
    between = np.diff(arrival)
    prompts = None
    if any(blocks):
        tokens = tuple(prompt.astype(int).tolist())
        prompts = Prompts(tokens=tokens, blocks=tuple(blocks), block_tokens=_BLOCK_TOKENS)
    share = cached / max(float(prompt.sum()), 1.0) if prompts is None else prompts.share_found()
    return RequestTrace(
        requests=len(requests),
        rate_per_s=float(1.0 / between.mean()),
        arrival_cv=float(between.std() / between.mean()),
        prompt_tokens=max(round(float(prompt.mean())), 1),
        prompt_cv=float(prompt.std() / max(prompt.mean(), 1.0)),
        output_tokens=max(round(float(output.mean())), 1),
        output_cv=float(output.std() / output.mean()),
        prefix_cached=share or None,
        prompts=prompts if share else None,
    )
