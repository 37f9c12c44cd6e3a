"""From a published table to canonical rows: the kind of the table, the converter of each row, and the rows that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.datasets import collectives, deployments, images, kernels, reading, runs
from benchmarks.datasets.cells import Cells
from benchmarks.datasets.headers import MOST_TITLES, names_below, read_as
from benchmarks.datasets.published import dataset_of
from planner.core.errors import FileProblem, InputFileError
from planner.measurements import tables

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Converted", "convert", "read"]

RowConverter = Callable[[reading.Row], Cells]


def _training_run(row: reading.Row) -> Cells:
    is_image = not row.has("hidden") and images.network_name(row) is not None
    return images.image_run(row) if is_image else runs.transformer_run(row)


_RUN = (
    ("device", "device_file"),
    ("gpus", "dp", "nodes"),
    ("global_batch", "micro_batch", "batch_per_gpu", "batch_per_dp"),
    ("step_time_ms", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "items_per_s", "oom"),
)
_BATCH = ("batch", "batch_per_gpu", "global_batch")
# Columns that tell the kind of a table (of each tuple, one is there) -> converter of its rows; the first that has all is meant.
_KINDS: tuple[tuple[tuple[tuple[str, ...], ...], RowConverter], ...] = (
    ((("kernel",), ("device", "device_file"), ("time_ms",)), kernels.measured),
    (
        (*((name,) for name in "nchwkrs"), ("device",), ("fwd_ms", "bwd_input_ms", "bwd_param_ms", "time_ms")),
        kernels.convolution,
    ),
    ((("m",), ("n",), ("k",), ("device",), ("time_ms",)), kernels.product),
    ((("tokens",), ("expert_ffn",), ("experts",), ("device",), ("time_ms",)), kernels.experts),
    ((("cell",), ("hidden",), ("batch",), ("timesteps",), ("device",), ("fwd_ms",)), kernels.recurrent),
    ((("op",), ("batch",), ("activation_bytes",), ("fwd_ms",)), kernels.operator),
    ((("device",), ("precision",), ("mamf_tflops",), ("best_mnk",)), kernels.matmul_peak),
    (
        (("device",), ("ranks",), ("bytes",), ("time_us", "time_ms", "busbw_GBps", "algbw_GBps", "busbw_ring_GBps")),
        collectives.collective,
    ),
    ((("device",), ("ranks",), ("tokens_per_rank",), ("dispatch_us", "combine_us")), collectives.dispatch),
    ((("isl",), ("osl",), ("concurrency",), ("device",), ("ttft_ms", "tpot_ms")), deployments.deployment),
    ((("hidden",), ("layers",), ("heads",), *_RUN), _training_run),
    (
        (
            ("model", "net"),
            ("device",),
            _BATCH,
            ("step_time_ms", "samples_per_s", "forward_ms", "frames_per_s", "audio_samples_per_s"),
        ),
        _training_run,
    ),
    ((("net",), ("layer",), ("pass_",), ("time_ms",), ("device",)), kernels.layer_log),
    ((("model", "net"), *_RUN), _training_run),
    ((("model", "net"), ("device",), _BATCH, ("tokens_per_s", "tokens_per_s_per_gpu", "items_per_s")), _training_run),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Canonical rows of a published table.

    Attributes
    ----------
    path : Path
    sha256 : str
        Of the published table.
    rows : tuple of (int, Cells)
        Line of the published table, and the canonical row.
    refused : tuple of FileProblem
        Lines that cannot be read, and why.
    unread : tuple of str
        Columns with cells that no converter asked for.
    """

    path: Path
    sha256: str
    rows: tuple[tuple[int, Cells], ...]
    refused: tuple[FileProblem, ...]
    unread: tuple[str, ...] = ()

    def frame(self) -> pd.DataFrame:
        """The rows as a data frame of texts; empty where nothing is stated."""
        import pandas as pd

        columns = list(dict.fromkeys(name for _, cells in self.rows for name in cells))
        return pd.DataFrame([[cells.get(name, "") for name in columns] for _, cells in self.rows], columns=columns)


def convert(path: Path) -> Converted:
    """Convert a table.

    Parameters
    ----------
    path : Path
        CSV file.

    Raises
    ------
    InputFileError
        It cannot be read, or has the columns of no kind of table.
    """
    table = reading.read_table(path)
    converter = _converter(table)
    rows, refused = [], []
    for row in table.rows:
        try:
            cells = converter(row)
            known = dataset_of(row)
            if known is not None:
                known.adapt(row, cells)
            cells.put("source_sha256", table.sha256)
            rows.append((row.line, cells))
        except reading.Unreadable as trouble:
            refused.append(FileProblem(path=path, line=row.line, column=1, message=str(trouble)))
    return Converted(path=path, sha256=table.sha256, rows=tuple(rows), refused=tuple(refused), unread=table.unread)


def _converter(table: reading.Table) -> RowConverter:
    names = set(table.columns)
    for needed, converter in _KINDS:
        if all(names & set(group) for group in needed):
            return converter
    for row in table.rows[:MOST_TITLES]:
        said = {name for name, _ in read_as(row.words).values()} | set(row.words)
        if any(all(said & set(group) for group in needed) for needed, _ in _KINDS):
            raise InputFileError([FileProblem(path=table.path, line=1, column=1, message=names_below(row.line))])
    raise InputFileError(
        [FileProblem(path=table.path, line=1, column=1, message="has the columns of no kind of table that is known")]
    )


def read(path: Path) -> tables.Table:
    """The canonical rows of a published table as `planner.measurements` takes them; lines are those of the published table."""
    found = convert(path)
    return tables.table_of(found.frame(), path, lines=[line for line, _ in found.rows], sha256=found.sha256)
