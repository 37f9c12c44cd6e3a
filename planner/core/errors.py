"""What can go wrong for a user, as one tree of exceptions; each knows the exit code of the command that meets it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from planner.core.answer import Answer

# More lines than this help nobody; the rest is counted.
_SHOWN_PROBLEMS = 50
# Names listed in a message before it says "...".
_SHOWN_NAMES = 40


class ExitCode(IntEnum):
    """Exit status of every command."""

    OK = 0
    NO_PLAN = 1  # nothing fits, or a check failed
    USAGE = 2  # bad option, name or file
    LIMIT = 3  # a limit stopped the search before it had a plan
    INTERNAL = 70  # a defect of the planner (EX_SOFTWARE of sysexits.h)
    INTERRUPTED = 130  # 128 + SIGINT


class PlannerError(ValueError):
    """Anything that a user can put right; ``str()`` is the whole message, no traceback is needed.

    A ValueError, so that programs which know nothing of this module can catch it.

    Examples
    --------
    >>> import planner
    >>> try:
    ...     planner.optimize("alexnet", gpus=0)
    ... except planner.PlannerError as error:
    ...     print(error, int(error.exit_code))
    gpus 0: must be at least 1 2
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class UsageError(PlannerError):
    """An option has a value that cannot be used; ``faults`` are those that it puts together, where there are several.

    Examples
    --------
    >>> import planner
    >>> planner.optimize("alexnet", gpus=4, objective="tokens_per_s")
    Traceback (most recent call last):
    ...
    planner.core.errors.UsageError: objective tokens_per_s: the network reads no tokens; objective step_time ranks its plans so
    """

    faults: tuple[PlannerError, ...] = ()


class OutputError(PlannerError):
    """The result cannot be written where it should go.

    Examples
    --------
    >>> import planner
    >>> planner.optimize("alexnet", gpus=1).save("/dev/null/plan.yaml")
    Traceback (most recent call last):
    ...
    planner.core.errors.OutputError: /dev/null/plan.yaml: cannot be written: Not a directory
    """


class NoFeasiblePlan(PlannerError):  # noqa: N818 - named after the situation
    """No plan of the space is legal and fits into memory; the message names the nearest miss.

    Examples
    --------
    >>> import planner
    >>> try:
    ...     planner.optimize("vgg16", gpus=1, batch=4096, memory_limit="1 GiB")
    ... except planner.NoFeasiblePlan as error:
    ...     print(str(error).split(":")[0])
    nothing fits
    """

    exit_code = ExitCode.NO_PLAN


class LimitReached(PlannerError):  # noqa: N818 - named after the situation
    """A time or memory limit stopped the search before it found a plan.

    Examples
    --------
    >>> import planner
    >>> planner.optimize("llama3-8b", gpus=16, cluster="h100-a100", time_limit="1us")
    Traceback (most recent call last):
    ...
    planner.core.errors.LimitReached: the time limit ended the search before it found a plan; time_limit gives it longer
    """

    exit_code = ExitCode.LIMIT


class SearchInterrupted(PlannerError):  # noqa: N818 - named after the situation
    """Ctrl-C during a search; ``result`` holds the best plans so far, None where there is none yet."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERRUPTED

    def __init__(self, result: Answer | None) -> None:
        self.result = result
        super().__init__(
            "interrupted: these are the best plans so far" if result else "interrupted before a plan was found"
        )


def no_plan_in_time() -> LimitReached:
    """Nothing was found in time; what was not looked at may fit."""
    return LimitReached("the time limit ended the search before it found a plan; --time-limit gives it longer")


class UnknownName(PlannerError):  # noqa: N818 - named after the situation
    """A model, device, cluster, collective, ... of this name does not exist.

    Parameters
    ----------
    kind : str
        What was looked for, in the singular: ``device``.
    name : str
        As the user wrote it.
    known : iterable of str
        What exists.
    hint : str, optional
        Ends the message: a command that lists what exists.
    meant : sequence of str, optional
        What the name may stand for, the likeliest first; without it the nearest names are suggested.
    unlisted : iterable of str, optional
        Other names that exist, which are suggested only.

    Examples
    --------
    >>> print(UnknownName(kind="device", name="h10", known=["a100", "h100"], hint="list them: planner list devices"))
    device 'h10' is not known; did you mean 'h100'? (known: a100, h100; list them: planner list devices)
    """

    def __init__(
        self,
        *,
        kind: str,
        name: str,
        known: Iterable[str],
        hint: str = "",
        meant: Sequence[str] = (),
        unlisted: Iterable[str] = (),
    ) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        shown = ", ".join(self.known[:_SHOWN_NAMES]) + (", ..." if len(self.known) > _SHOWN_NAMES else "")
        tail = "; ".join(part for part in (f"known: {shown}" if shown else "", hint) if part)
        several = " or ".join(f"'{one}'" for one in meant)
        suggested = f"; did you mean {several}?" if several else did_you_mean(name, (*self.known, *unlisted))
        said = f"is the name of several: say {several}" if len(meant) > 1 else f"is not known{suggested}"
        self.reason = said + (f" ({tail})" if tail else "")
        super().__init__(f"{kind} '{name}' {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileProblem:
    """One thing wrong in a file. Lines and columns count from 1; 0 means that the problem has no place in the file.

    Examples
    --------
    >>> str(FileProblem(path=Path("a.yaml"), line=4, column=7, where="layers[0].kernal", message="unknown key 'kernal'"))
    "a.yaml:4:7: layers[0].kernal: unknown key 'kernal'"
    """

    path: Path
    line: int = 0
    column: int = 0
    where: str = ""
    message: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else str(self.path)
        return ": ".join(part for part in (place, _shown(self.where, 120), _shown(self.message, 1000)) if part)


class InputFileError(PlannerError):
    """A file cannot be used; ``problems`` holds everything wrong with it, in the order of the file.

    Examples
    --------
    >>> import planner
    >>> try:
    ...     planner.load_model({"schema_version": 1, "name": "net", "layers": []})
    ... except planner.InputFileError as error:
    ...     print(len(error.problems) > 0)
    True
    """

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        assert problems, "an error without a problem"
        self.problems = tuple(sorted(set(problems)))
        lines = [str(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"... and {len(self.problems) - _SHOWN_PROBLEMS} more problems")
        super().__init__("\n".join(lines))


def _shown(text: str, limit: int) -> str:
    """One printable line: a file must not be able to send control codes to the terminal."""
    text = text if len(text) <= limit else text[:limit] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


_MOST_MEANT = 3  # names with the same beginning
_MOST_COMPARED = 8
# Ratios of difflib (letters in common, twice, over the letters of both), of which 0.6 is its own default. That takes "frobnicate" for
# "concat"; a letter missing, added or wrong in a word of four leaves 0.75 or more, so what is below 0.7 counts only where the one word is
# in the other ("batch_size" for "batch") or the word is so short that one wrong letter leaves 0.67 ("sgb" for "sgd").
_ALIKE = 0.6
_MUCH_ALIKE = 0.7
_SHORT = 3
_SAME = 0.9


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of a sentence that suggests the nearest known name; empty where none is near.

    Examples
    --------
    >>> did_you_mean("kernal", ["kernel", "stride"])
    "; did you mean 'kernel'?"
    >>> did_you_mean("zzz", ["kernel", "stride"])
    ''
    >>> did_you_mean("--html", ["--help", "--quiet"])
    ''
    >>> did_you_mean("h100", ["p100", "h100-sxm"])  # a beginning is nearer than a misspelling
    "; did you mean 'h100-sxm'?"
    >>> did_you_mean("h100", ["h100-pcie", "h100-sxm"])
    "; did you mean 'h100-pcie' or 'h100-sxm'?"
    >>> did_you_mean("alexnett", ["alexnet", "alexnet-torchvision"])
    "; did you mean 'alexnet'?"
    >>> did_you_mean("adam8", ["adam", "adam-8bit"])  # marks between words do not count
    "; did you mean 'adam-8bit'?"
    """
    by_lower = {candidate.lower(): candidate for candidate in sorted(known, reverse=True)}
    word = name.lower()[:200]
    start = _plain(word)
    longer = sorted(candidate for candidate in by_lower if len(word) > 2 and _plain(candidate).startswith(start))
    near = _misspelt(word, list(by_lower))[:1]
    # A beginning that goes on over a mark ("alexnett" of "alexnet-tf-...") is further than one letter too many.
    if (
        near
        and not any(one.startswith(word) for one in longer)
        and difflib.SequenceMatcher(a=near[0], b=word).ratio() > _SAME
    ):
        longer = []
    close = longer[:_MOST_MEANT] or near
    meant = " or ".join(f"'{by_lower[candidate]}'" for candidate in close)
    return f"; did you mean {meant}?" if close else ""


def _plain(word: str) -> str:
    return word.replace("-", "").replace("_", "")


def _misspelt(word: str, known: Sequence[str]) -> list[str]:
    """Known words that one may be a misspelling of, nearest first.

    Options are compared without their dashes, which all of them have.
    """
    bare = word.lstrip("-")
    candidates = difflib.get_close_matches(bare, [one.lstrip("-") for one in known], n=_MOST_COMPARED, cutoff=_ALIKE)
    near = [
        one
        for one in dict.fromkeys(candidates)
        if len(bare) <= _SHORT
        or one in bare
        or bare in one
        or difflib.SequenceMatcher(a=one, b=bare).ratio() >= _MUCH_ALIKE
    ]
    return [next(name for name in known if name.lstrip("-") == one) for one in near]


class MissingExtra(PlannerError):  # noqa: N818 - named after the situation
    """Something needs a package that is not installed."""

    def __init__(self, what: str, extra: str, package: str) -> None:
        super().__init__(
            f"{what} needs the package '{package}', which is not installed: pip install 'paleo-planner[{extra}]'"
        )
