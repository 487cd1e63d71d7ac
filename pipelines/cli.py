"""The command line: ``gristmill``. Commands import what they need when they run, so starting costs next to nothing."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType

from cyclopts import App, CycloptsError, Group
from rich.console import Console

from pipelines.commands import ask, keep, run, set_up
from pipelines.tables import printable
from schemas.errors import BUG, CTRL_C, DONE, SAVED, USER_ERROR, GristmillError

EXIT_CODES = f"""Exit codes: {DONE} done; {BUG} an error in gristmill itself (with a traceback); {USER_ERROR} something you can put right;
{SAVED} stopped by a signal, the state is saved, run the same command again; {CTRL_C} Ctrl-C, likewise."""

COLLECT_EVERY = 100_000
"""Objects between collections of garbage: at Python's 700, imports, whose objects all stay, take a sixth longer."""

COMMANDS: dict[str, tuple[ModuleType, tuple[str, ...]]] = {
    "Run": (run, ("run", "curate", "stage", "train", "rewind", "ablate", "score", "generate")),
    "Ask": (ask, ("plan", "what-if", "classify train", "status", "stats", "why", "steps", "sql", "diff", "report", "ui")),
    "Keep": (keep, ("forget", "snapshot", "export")),
    "Set up": (set_up, ("init", "schema", "doctor")),
}
"""By the group that help shows: the module, and its commands in order."""

PARENTS = {"classify": "Train a quality classifier."}
"""What commands of two words are about."""


class Stopped(BaseException):
    """SIGTERM arrived.

    Attributes:
        asked: whether it did. A library that is being imported may swallow the exception, and fail in its stead.
    """

    asked = False


def build_app() -> App:
    """The application with all its commands."""
    app = App(
        name="gristmill",
        help="From raw text to a trained language model, with every document's life in SQL.",
        help_epilogue=EXIT_CODES,
        version=_version,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    parents: dict[str, App] = {}
    for order, (title, (module, names)) in enumerate(COMMANDS.items()):
        group = Group(title, sort_key=order)
        for name in names:
            function = getattr(module, name.replace(" ", "_").replace("-", "_"))
            parent, _, last = name.rpartition(" ")
            if not parent:
                app.command(function, name=last, group=group)
                continue
            if parent not in parents:
                parents[parent] = App(name=parent, help=PARENTS[parent], group=group)
                app.command(parents[parent])
            parents[parent].command(function, name=last)
    app.register_install_completion_command(help="Install shell completion (bash, zsh, fish).")
    return app


def _version() -> str:
    from importlib.metadata import version

    return version("gristmill")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    gc.set_threshold(COLLECT_EVERY)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal of another encoding gets escapes for what it cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; see ``EXIT_CODES``."""
    errors = Console(stderr=True, soft_wrap=True)
    signal.signal(signal.SIGTERM, _stop)
    Stopped.asked = False
    try:
        if wrong := next((text for text in arguments if not _is_text(text)), None):
            raise GristmillError(f"{wrong!a} is not UTF-8", where="the command line", fix="rename the file, or write it in UTF-8")
        build_app()(list(arguments), exit_on_error=False, print_error=False, error_console=errors)
        return DONE
    except CycloptsError as error:
        print(f"gristmill: {error}\n  -> gristmill --help, or gristmill COMMAND --help", file=sys.stderr)
        return USER_ERROR
    except GristmillError as error:
        print(printable(f"gristmill: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\ngristmill: interrupted. What is finished is kept; go on with:\n  {_same(arguments)}", file=sys.stderr)
        return CTRL_C
    except BrokenPipeError:
        sys.stdout = None  # type: ignore[assignment]  # the reader has gone (head, less): nothing is left to flush to
        return DONE
    except (Stopped, Exception) as error:
        if Stopped.asked:
            print(f"gristmill: stopped. What is finished is kept; go on with:\n  {_same(arguments)}", file=sys.stderr)
            return SAVED
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        print(printable(f"gristmill: {_full(error)}"), file=sys.stderr)
        return USER_ERROR


def _full(error: BaseException) -> GristmillError:
    """A disk that is full where temporary files go, in words that DuckDB, Arrow and Python share; the lake's own writes say more."""
    from tempfile import gettempdir

    fix = f"free space in {gettempdir()}, or name a folder that has more by TMPDIR; then run again: finished shards are kept"
    return GristmillError(f"the disk is full: {str(error).splitlines()[0]}", fix=fix)


def _is_text(argument: str) -> bool:
    """Whether an argument's bytes are UTF-8: Python keeps others as surrogates, which no file, table or terminal takes."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)


def _stop(number: int, frame: FrameType | None) -> None:
    Stopped.asked = True
    raise Stopped


def _same(arguments: Sequence[str]) -> str:
    import shlex

    return shlex.join(["gristmill", *arguments])


if __name__ == "__main__":
    main()
