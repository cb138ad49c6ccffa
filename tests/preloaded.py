"""Import what most programs of the tests need; `tests.forked` forks the process."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path

import pytest

# As pytest has it: the product of this tree, not one that is installed.
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

for name in (
    "examples.support_agent",
    "tests.chaos.process",
    "tests.linearizability.load",
    "tests.resume.resume_stack",
    "tests.races.standing_process",
    "tests.service.audit_writer_process",
    "keyturn.cli.demo",
    "keyturn.cli.demo_scripts",
    "keyturn.cli.main",
):
    import_module(name)

# As `conftest.slack_waits` has it in the process of the tests.
import_module("tests.patience").be_patient(pytest.MonkeyPatch())
import_module("tests.patience").lift_limits(pytest.MonkeyPatch())

# A collection in a fork would touch, and so copy, every object of these modules.
gc.freeze()
