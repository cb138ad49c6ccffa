"""Start ``keyturn``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

# The following imports, and then the command's modules, take seconds. Until then Ctrl+C
# just ends the process.
_interrupted = signal.getsignal(signal.SIGINT)
if _interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from keyturn.cli import process_end  # noqa: E402 - the signal first

process_end.end_only_with_terminal()


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    _have_streams()
    for stream in (sys.stdout, sys.stderr):
        # Characters that a terminal cannot show become escapes, not errors.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _have_home()
    if sys.argv[1:] == ["hook", "codex"]:
        # Codex starts it for each call, so the command line is not imported.
        sys.exit(import_module("keyturn.connect.codex_hook").run(os.environ))
    code = _run()
    process_end.end_soon(code)
    sys.exit(code)


def _run() -> int:
    try:
        run: Callable[..., int] = import_module("keyturn.cli.main").run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("keyturn"):
            raise
        # Without the extra `server` there are no commands, and agents need none.
        sys.stderr.write(
            f"'keyturn' needs the package {error.name!r}; run: "
            "pip install 'keyturn[server]'\n"
        )
        return 2
    return run(loaded=_interruptible)


def _have_streams() -> None:
    # A newly opened file or connection gets the lowest free number: output to a closed
    # stream would go into it.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - takes it by position only


def _have_home() -> None:
    # slack_sdk looks up the home folder on import, and the user of a container may have
    # none. No data is stored there.
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def _interruptible() -> None:
    # Restore the handler: Python's, which raises KeyboardInterrupt so that resources
    # are closed, or "ignored" in a background job.
    signal.signal(signal.SIGINT, _interrupted)


if __name__ == "__main__":
    main()
