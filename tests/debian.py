"""Install packages of Debian that tests need, where this user may."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

LOCK = "keyturn-tests-apt.lock"


def find_or_install(find: Callable[[], str | None], *packages: str) -> str | None:
    """Return what `find` finds, if need be after an installation of `packages`.

    Returns:
        None when it is not there still, because nothing could be installed.
    """
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return find()
    # Several processes of tests need the same package at the same time. apt-get
    # refuses to run twice, and a program is on the path before it is all there.
    with Path(tempfile.gettempdir(), LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find() is None:
            _install(apt, packages)
        return find()


@cache
def _install(apt: str, packages: tuple[str, ...]) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", *packages]):
        if subprocess.run([apt, "-qq", *words], env=env, check=False).returncode != 0:
            return
