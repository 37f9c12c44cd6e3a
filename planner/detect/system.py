"""The machine as the detectors see it: programs that may be missing or hang, files that may not exist. Nothing here fails."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# nvidia-smi takes a second or two while it wakes a sleeping driver; a lost GPU makes it hang for ever.
_TIMEOUT_S = 10.0
# More than any of the files and outputs that are read here.
_MOST_CHARACTERS = 2**20
_SHORTEST_WAIT_S = 1.0


@dataclass(slots=True, kw_only=True)
class System:
    """The machine that this program runs on; None (or nothing) stands for everything that does not work.

    Attributes
    ----------
    timeout_s : float
        For each program.
    remarks : list of str
        What did not work and is worth telling: a program that hangs or fails.
    """

    timeout_s: float = _TIMEOUT_S
    remarks: list[str] = field(default_factory=list)
    _hung: set[str] = field(default_factory=set)

    def run(self, program: str, *arguments: str) -> str | None:
        """Stdout of a program that ended well; a program that hung once is not asked again."""
        path = shutil.which(program)
        if path is None or program in self._hung:
            return None
        try:
            # S603: the arguments are written in this package, none comes from outside; there is no shell.
            process = subprocess.Popen(  # noqa: S603
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.remarks.append(f"{program} cannot be started: {getattr(error, 'strerror', None) or error}")
            return None
        try:
            text, _ = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            self._hung.add(program)
            self.remarks.append(f"{program} did not answer within {self.timeout_s:g} s and was stopped")
            _stop(process)
            return None
        except BaseException:
            _stop(process)
            raise
        if process.returncode != 0:
            self.remarks.append(f"{' '.join((program, *arguments))[:80]} failed with exit code {process.returncode}")
            return None
        return text[:_MOST_CHARACTERS]

    def read(self, path: str) -> str | None:
        """Text of a file, without blanks around it."""
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as stream:
                return stream.read(_MOST_CHARACTERS).strip()
        except (OSError, ValueError):  # files of sysfs answer "invalid argument" where they have nothing to say
            return None

    def names(self, folder: str) -> Sequence[str]:
        """Names in a folder, sorted."""
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        try:
            return Path(path).exists()
        except OSError:
            return False

    def usable_cpus(self) -> int | None:
        """Logical CPUs that this process may run on: containers and batch systems give fewer than there are."""
        if hasattr(os, "sched_getaffinity"):
            with contextlib.suppress(OSError):
                return len(os.sched_getaffinity(0))
        return os.cpu_count()


def _stop(process: subprocess.Popen[str]) -> None:
    """Kill a program and what it started; one that hangs in the driver cannot be killed and is left behind."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_SHORTEST_WAIT_S)
    if process.stdout is not None:
        process.stdout.close()


def number_in(text: str | None) -> float | None:
    """A positive number; "[N/A]", "[Not Supported]" and the like are none.

    >>> number_in("81559"), number_in("-1"), number_in("[N/A]"), number_in(None)
    (81559.0, None, None, None)
    """
    return float(text) if text and re.fullmatch(r"\d{1,18}(\.\d{1,9})?", text) and float(text) > 0 else None


def clean_text(text: str) -> str:
    """A name fit to print: what a program says must not send control codes to a terminal or break a YAML file."""
    return "".join(c for c in text if c.isprintable()).strip()[:100]
