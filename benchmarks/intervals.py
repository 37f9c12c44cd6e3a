"""Error bars: fits the error model to published runs and scores it on groups left out.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/intervals.py [--write]     (two to four minutes)

``--write`` puts the model into configs/calibrations/default.yaml and the scores into docs/accuracy.md; of the model, what is known of
serving is that of `serving.py`, and what is known of memory that of `memory_errors.py`, which is left as it is.

The residuals are those of the bundled cost model. Standard deviations (of the named constants, by what they change; of the parts of a
step; of all plans of a question; of one plan) are fitted by maximum likelihood to whole questions at a time, so that what plans share
is told from what is their own; residuals beyond three robust standard deviations are cut before. Quantiles are those of
standardised residuals of rows left out, wider for kinds with few groups (CV+: Barber, Candes, Ramdas, Tibshirani, Annals of Statistics
49(1), 2021). A fold leaves out all rows of some models (hidden sizes in vTrain); a second table leaves out whole files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from first_tokens import error_models, first_tokens
from interval_left_out import everything
from interval_rows import read_rows
from interval_tables import calibration_text, kind_lines, other_sources_table, text_of
from memory_errors import kept_section
from pages import measurements, put
from serving import serving_models
from serving_rows import figure_rows

ROOT = Path(__file__).resolve().parents[1]
PAGE, CALIBRATION = ROOT / "docs" / "accuracy.md", ROOT / "configs" / "calibrations" / "default.yaml"
BEGIN, END = "<!-- error bars: python benchmarks/intervals.py --write -->", "<!-- end of the error bars -->"


def main(arguments: Sequence[str]) -> None:
    """Print the section and the calibration, or write them."""
    folder = measurements()
    rows = read_rows(folder)
    fitted, without_models, without_files, of_files = everything(rows)
    figures = figure_rows()
    text = text_of(without_models, without_files, other_sources_table(fitted, of_files))
    serving = serving_models(figures, fitted.log_sd)
    waits = first_tokens(folder)
    first = [
        line for kind, model in error_models(waits).items() for line in kind_lines(kind, model, len(waits.residual))
    ]
    calibration = calibration_text(rows, fitted, folder, serving, figures) + "\n".join(first) + "\n"
    if "--write" not in arguments:
        print(text, calibration, sep="\n\n")
        return
    kept = kept_section(CALIBRATION.read_text(encoding="utf-8"))
    CALIBRATION.write_text(calibration + kept, encoding="utf-8")
    put(PAGE, BEGIN, text, END)


if __name__ == "__main__":
    main(sys.argv[1:])
