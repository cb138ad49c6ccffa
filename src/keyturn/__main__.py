"""Start ``keyturn``."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path

# Importing what follows, and then the modules of the command, takes seconds, in which
# Ctrl+C just ends the process.
_interrupted = signal.getsignal(signal.SIGINT)
if _interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from keyturn.cli.hang_ups import end_only_with_terminal  # noqa: E402 - the signal first

end_only_with_terminal()

from keyturn.cli.hanging_threads import end_soon  # noqa: E402 - as well

try:
    from keyturn.cli.main import run
except ModuleNotFoundError as error:
    if (error.name or "").startswith("keyturn"):
        raise
    # Without the extra `server` there are no commands: an agent's process needs none.
    sys.stderr.write(
        f"'keyturn' needs the package {error.name!r}; run: "
        "pip install 'keyturn[server]'\n"
    )
    sys.exit(2)


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    _have_streams()
    for stream in (sys.stdout, sys.stderr):
        # What a terminal cannot show is written as an escape, not as an error.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _have_home()
    code = run(loaded=_interruptible)
    end_soon(code)
    sys.exit(code)


def _have_streams() -> None:
    # A file or connection that is opened gets the lowest number that is free: what is
    # said on a closed stream would go into it.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - takes it by position only


def _have_home() -> None:
    # slack_sdk asks for the user's home folder when it is imported, and the user of a
    # container may have none. Nothing is kept there.
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def _interruptible() -> None:
    # Back to what it was: Python's handler, by which Ctrl+C raises KeyboardInterrupt
    # and what is open gets closed; or ignored, in a job of the background.
    signal.signal(signal.SIGINT, _interrupted)


if __name__ == "__main__":
    main()
