"""What every answer can do: print as the command line prints it, show as tables in a notebook, become data and pages."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from planner.api.calls import in_python_words
from planner.api.pages import report_files, writable

if TYPE_CHECKING:
    from planner.core.blocks import Report

_WIDTH = 120  # of text where no terminal says otherwise


_T = TypeVar("_T")


class Reads(property, Generic[_T]):
    """A property that is an attribute of what an object holds: the path to it, and what it is.

    >>> class Box:
    ...     inner = "some text"
    ...     kind = Reads[type]("inner.__class__", "Type of what is in the box.")
    >>> Box().kind, Box.kind.__doc__
    (<class 'str'>, 'Type of what is in the box.')
    """

    def __init__(self, path: str, doc: str) -> None:
        super().__init__(attrgetter(path), doc=doc)
        self.__doc__ = doc  # some releases of Python 3.11 show that of the class

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None, /) -> _T: ...  # type: ignore[override]


class Answer(ABC):
    """Base of the answers; ``str()`` is the text of the command line, a notebook shows tables.

    A class has `_report`, which makes the report that the commands print.
    """

    __slots__ = ()

    @abstractmethod
    def _report(self) -> Report: ...

    def to_dict(self) -> dict[str, Any]:
        """The document of ``--json``: SI units with the unit in the key, None where there is no value."""
        from planner.report.machine import finite

        return dict(finite(self._report().data()))

    def to_records(self) -> list[dict[str, Any]]:
        """The rows of ``--format csv``: one mapping per plan, layer, device or point."""
        from planner.report.machine import finite

        return [dict(finite(record)) for record in self._report().records()]

    def to_pandas(self) -> Any:
        """The rows of `to_records` as a table of pandas.

        Returns
        -------
        pandas.DataFrame
        """
        import pandas as pd

        return pd.DataFrame.from_records(self.to_records())

    def to_markdown(self) -> str:
        """The text of ``--format markdown``."""
        from planner.report.text import markdown_text

        return markdown_text(self._report().blocks())

    def to_csv(self) -> str:
        """The text of ``--format csv``."""
        from planner.report.machine import csv_text

        return csv_text(self._report().records())

    def __str__(self) -> str:
        from planner.report.text import plain_text

        width = shutil.get_terminal_size((_WIDTH, 24)).columns
        return plain_text(self._report().blocks(), max(width, 60)).rstrip("\n")

    def _repr_html_(self) -> str:
        from planner.report.page import html_of

        return html_of(self._report().blocks())


class Written(Answer):
    """Base of the answers that can be written as a page, a figure or a trace: a search, and one plan that was predicted."""

    __slots__ = ()

    raw: Any

    def write_html(self, path: str | os.PathLike[str], *, static: bool = False, figure: str | None = None) -> Path:
        """Write a page with figures and sortable tables: one file that needs no network.

        Parameters
        ----------
        path : path
            Ends in ``.html``.
        static : bool
            Figures without a script, also where plotly is installed.
        figure : str, optional
            ``pareto`` or ``scaling``: search more plans for the figures of the page.
        """
        return self._written(
            "html", path, ({"static": True} if static else {}) | ({"figure": figure} if figure else {})
        )

    def write_plot(self, path: str | os.PathLike[str], *, figure: str | None = None) -> Path:
        """Write a figure (``.svg``, or ``.png`` with matplotlib), as ``planner optimize --plot --figure`` does."""
        return self._written("plot", path, {} if figure is None else {"figure": figure})

    def write_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the step of the best plan as a trace for Perfetto (``.json`` or ``.json.gz``)."""
        return self._written("trace", path, {})

    def _written(self, name: str, path: str | os.PathLike[str], more: Mapping[str, Any]) -> Path:
        with in_python_words() as values:
            files = report_files(
                {name: path, **more}, values, lambda name, *kind: writable(values, name, os.fspath(path), *kind)
            )
            values.check()
            from planner.api.report_files import write_report_files

            write_report_files(self.raw, self._report(), files, lambda _: None)
        return Path(path)
