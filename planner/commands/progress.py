"""One line on stderr that says what is being done, and vanishes."""

from __future__ import annotations

import sys
import time

from planner.commands.output import Output

__all__ = ["Progress"]

_QUIET_S = 1.0  # shorter searches show nothing
_EVERY_S = 0.1


class Progress:
    """Shows the stage and the share done: on a terminal only, after a second, on one line that is wiped at the end.

    With ``--verbose`` each new stage is also logged on a line of its own, terminal or not.
    """

    def __init__(self, output: Output) -> None:
        self._shown = sys.stderr.isatty() and not output.quiet
        self._verbose = output.verbose
        self._start_s = time.monotonic()
        self._last_s = 0.0
        self._width = 0
        self._stage = ""

    def __call__(self, stage: str, share: float) -> None:
        """Take a report: what is being done, and how much of it is done (0 to 1)."""
        now_s = time.monotonic() - self._start_s
        if self._verbose and stage != self._stage:
            self._wipe()
            sys.stderr.write(f"planner: {now_s:7.3f} s  {stage}\n")
        self._stage = stage
        if not self._shown or now_s < _QUIET_S or now_s - self._last_s < _EVERY_S:
            return
        self._last_s = now_s
        line = f"{stage} {min(max(share, 0.0), 1.0):4.0%}  {now_s:.0f} s"[:79]
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        """Wipe the line."""
        self._wipe()
        if self._verbose:
            sys.stderr.write(f"planner: {time.monotonic() - self._start_s:7.3f} s  done\n")

    def _wipe(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
