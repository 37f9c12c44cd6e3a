"""An answer as a page, a figure or a trace, as ``--html``, ``--plot`` and ``--trace`` write them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.api.words import in_python_words

if TYPE_CHECKING:
    from planner.core.answer import Answer, Estimate
    from planner.core.blocks import Report

__all__ = ["Written", "write_answer"]


class Written(ABC):
    """What can be written of a search, and of one plan that was predicted; a class says in `_write` how."""

    __slots__ = ()

    @abstractmethod
    def _write(self, words: Mapping[str, Any]) -> None: ...

    def write_html(self, path: str | os.PathLike[str], *, static: bool = False) -> Path:
        """Write a page with figures and sortable tables: one file that needs no network.

        Parameters
        ----------
        path : path
            Ends in ``.html``.
        static : bool
            Figures without a script, also where plotly is installed.
        """
        self._write({"html": os.fspath(path), "static": static})
        return Path(path)

    def write_plot(self, path: str | os.PathLike[str], *, figure: str | None = None) -> Path:
        """Write a figure (``.svg``, or ``.png`` with matplotlib), as ``planner optimize --plot --figure`` does."""
        self._write({"plot": os.fspath(path), "figure": figure})
        return Path(path)

    def write_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the step of the best plan as a trace for Perfetto (``.json`` or ``.json.gz``)."""
        self._write({"trace": os.fspath(path)})
        return Path(path)


def write_answer(answer: Answer | Estimate, report: Report, words: Mapping[str, Any]) -> None:
    """Check the files and write them.

    Raises
    ------
    PlannerError
        A file that cannot be written, a figure that such plans do not have.
    """
    from planner.commands.output import Output
    from planner.commands.report_files import write_prediction_files, write_search_files
    from planner.commands.report_options import report_files
    from planner.commands.values import Values
    from planner.core.answer import Answer
    from planner.core.errors import UsageError

    with in_python_words():
        if answer.setting.load is not None:
            raise UsageError("pages, figures and traces are of training and of a forward pass, not of serving")
        values, quiet = Values(), Output(quiet=True)
        files = report_files(words, quiet, values, {})
        values.check()
        if isinstance(answer, Answer):
            write_search_files(answer, report, files, quiet)
        else:
            write_prediction_files(answer, report, files, quiet)
