"""The command line: registers the commands and turns whatever happens into a message and an exit code.

Start-up is kept under 0.3 s: modules that need numpy, pydantic, YAML, rich or a solver are imported by the commands that use them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from planner.core.errors import ExitCode, InputFileError, PlannerError, SearchInterrupted, did_you_mean

# Command -> module, function, summary; in the order of the help. A module is imported when its command is asked for.
_COMMANDS = {
    "optimize": ("planner.commands.questions", "optimize", "Find the fastest plans, ranked and proven."),
    "estimate": ("planner.commands.questions", "estimate", "Predict the step time of one plan."),
    "explain": ("planner.commands.questions", "explain", "Show where the time of a plan goes, layer by layer."),
    "compare": ("planner.commands.compare", "compare", "Compare plans: what differs, by how much and why."),
    "why-not": (
        "planner.commands.questions",
        "why_not",
        "Say why a plan is not the first: rules, memory, rank, costs.",
    ),
    "scale": ("planner.commands.questions", "scale", "Show how a network scales over 1, 2, 4, ... workers."),
    "sweep": ("planner.commands.studies", "sweep", "Search a grid of clusters, GPUs and batches to one table."),
    "size": ("planner.commands.studies", "size", "How many of which GPUs meet a deadline and a budget."),
    "place": ("planner.commands.place", "place", "Place an operator graph on devices, optimally."),
    "validate": ("planner.commands.measurements", "validate", "Score predictions against measurements."),
    "check": ("planner.commands.check", "check", "Compare the log of a run with its prediction."),
    "measure": ("planner.commands.machine", "measure", "Time kernels and collectives on this machine."),
    "detect": ("planner.commands.machine", "detect", "Describe this machine as a cluster file."),
    "calibrate": ("planner.commands.measurements", "calibrate", "Fit the cost model to your own measurements."),
    "export": ("planner.commands.files_commands", "export", "Write a plan for the program that runs it."),
    "list": (
        "planner.commands.files_commands",
        "list_",
        "List what is bundled: models, devices, clusters, frameworks, ...",
    ),
    "show": (
        "planner.commands.files_commands",
        "show",
        "Show all that is known of a device, cluster, model or framework.",
    ),
    "import": ("planner.commands.files_commands", "import_", "Turn another program's network into a file."),
    "schema": ("planner.commands.files_commands", "schema", "Print the JSON Schema of a file or a result."),
}


# What needs no command's options.
_ROOT_OPTIONS = ("-h", "--help", "--help-all", "-V", "--version", "--show-completion", "--install-completion")


def make_app(only: str | None = None, *, names_only: bool = False) -> typer.Typer:
    """Build the application.

    Parameters
    ----------
    only : str, optional
        The one command that will run: leaving the others out saves a tenth of a small search.
    names_only : bool
        Whether commands are only listed: their options are left out, which takes two thirds of the time.
    """
    from planner.commands.command import GroupedCommand

    # Plain help: importing rich for it would take longer than everything else.
    app = typer.Typer(
        name="planner",
        help=(
            "Find the fastest way to train a neural network on a cluster: how many workers to use, how to split every layer over "
            "them and how to exchange gradients, with a proof, without a GPU."
        ),
        epilog="Example: planner optimize llama3-8b --nodes 1    "
        "Exit codes: 0 ok, 1 no plan, 2 bad usage or file, 3 limit, 70 a defect, 130 stopped.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for name, (module, function, summary) in _COMMANDS.items():
        if only in (None, name):
            body = _nothing if names_only else getattr(importlib.import_module(module), function)
            app.command(
                name,
                cls=GroupedCommand,
                short_help=summary,
                context_settings={"help_option_names": ["-h", "--help", "--help-all"]},
            )(body)
    app.callback()(_options_of_all)
    return app


@functools.cache
def _command(only: str | None, names_only: bool) -> Any:
    """The application ready to run, made once for programs that run several commands."""
    return typer.main.get_command(make_app(only, names_only=names_only))


def _nothing() -> None:
    """Stands for a command that is only listed."""


def _print_version(value: bool) -> None:
    if value:
        from planner import __version__

        typer.echo(f"planner {__version__}")
        raise typer.Exit


def _print_all_help(value: bool) -> None:
    if value:
        _guarded(["--help"])
        for name in _COMMANDS:
            typer.echo(f"\n{'-' * 80}\n")
            _guarded([name, "--help-all"])
        raise typer.Exit


def _options_of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", callback=_print_version, is_eager=True, show_default=False
        ),
    ] = False,
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all",
            help="Print the help of every command, with all of its options.",
            callback=_print_all_help,
            is_eager=True,
            show_default=False,
        ),
    ] = False,
) -> None:
    pass


def run(argv: Sequence[str]) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str
        Without the program's name.

    Returns
    -------
    int
        The exit code.
    """
    _open_closed_streams()
    # A terminal or pipe that cannot show a character gets an escape, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    verbose = "-v" in argv or "--verbose" in argv
    try:
        code = _guarded(argv or ["--help"])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Python would complain again while it flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        _say("interrupted")
        return ExitCode.INTERRUPTED
    except OSError as error:
        if verbose:
            raise
        closed = "stdout is closed" if error.errno == errno.EBADF else ""
        _say(f"error: {closed or error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return ExitCode.USAGE
    except Exception as error:
        if verbose:
            import traceback

            traceback.print_exc()
        reason = str(error).partition("\n")[0][:300]
        _say(f"internal error: {type(error).__name__}{': ' if reason else ''}{reason}")
        _say(
            "This is a defect of the planner, not of your input. Please report it with the command line"
            + _verbose_hint(verbose)
        )
        return ExitCode.INTERNAL
    return code


def _open_closed_streams() -> None:
    """Give a program started without stdout or stderr (``>&-``) streams all the same.

    What is written to stdout then fails, as it must; messages are lost. The files that are opened next would take the free numbers, and
    what libraries print would go into them.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _verbose_hint(verbose: bool) -> str:
    return " and this traceback." if verbose else "; --verbose shows the traceback."


def _guarded(argv: Sequence[str]) -> int:
    """Run a command; errors that a user can put right become one line each."""
    from planner.commands.command import is_completing

    only = argv[0] if argv[0] in _COMMANDS else None
    names_only = argv[0] in _ROOT_OPTIONS
    if is_completing():
        from planner.commands.completion import command_to_complete

        only = command_to_complete(os.environ, _COMMANDS)
        names_only = only is None
    command = _command(only, names_only)
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, by whatever name typer carries it
    try:
        code = command.main(args=list(argv), prog_name="planner", standalone_mode=False, obj={"argv": list(argv)})
    except InputFileError as error:
        _say(str(error))  # each line starts with file:line:column, which editors and terminals make clickable
        return error.exit_code
    except SearchInterrupted as error:
        _say(str(error))
        return error.exit_code
    except PlannerError as error:
        for line in str(error).splitlines():
            _say(f"error: {line}")
        return error.exit_code
    except typer.Abort:  # how older versions of typer hand on Ctrl-C
        raise KeyboardInterrupt from None
    except usage_error as error:
        _say(f"error: {_usage_text(error, argv)}")
        return ExitCode.USAGE
    if code == ExitCode.INTERRUPTED:  # how newer versions do
        raise KeyboardInterrupt
    return code if isinstance(code, int) else ExitCode.OK


def _say(text: str) -> None:
    # What was typed may hold what a terminal takes for a command.
    text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _usage_text(error: Exception, argv: Sequence[str]) -> str:
    """Say click's message on one line, with a suggestion and where to read on."""
    message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else str(error)
    from planner.commands.other_names import option_called

    context = getattr(error, "ctx", None)
    guessed = f"planner {argv[0]}" if argv[0] in _COMMANDS else "planner"
    path = guessed if context is None else context.command_path
    tail = f" (see {path} --help)"
    option = getattr(error, "option_name", None)
    if option and message.lower().startswith("no such option"):
        parameters = context.command.get_params(context) if context is not None else []
        if option == "--model" and any(parameter.name == "model" for parameter in parameters):
            return f"no such option: --model; MODEL comes first, as in: {path} MODEL{tail}"
        flags = [flag for parameter in parameters for flag in parameter.opts if flag.startswith("--")]
        called = option_called(option, flags)
        hint = f"; here it is '{called}'" if called else did_you_mean(option, flags)
        return f"no such option: {option}{hint}{tail}"
    unknown = re.match(r"No such command '(.*?)'", message)
    if unknown:
        return f"no such command: {unknown[1]}{did_you_mean(unknown[1], _COMMANDS)} (known: {', '.join(_COMMANDS)})"
    return message[:1].lower() + message[1:].rstrip(".") + tail
