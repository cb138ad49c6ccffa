"""One import name, which loads no more than it is asked for."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import keyturn
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import KeyturnError

ROOT = Path(__file__).parents[2]
LINKS = ("agent", "bot", "cli", "connect", "gateway", "sandbox")


def loaded_by(statement: str) -> set[str]:
    """Return the loaded modules of a new process after one statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {*json.loads(shown.stdout.splitlines()[-1])}


def test_what_a_program_imports_from_the_top_is_the_public_api() -> None:
    assert keyturn.Keyturn is Keyturn
    assert keyturn.KeyturnError is KeyturnError
    assert {*keyturn.__all__} <= {*dir(keyturn)}
    with pytest.raises(AttributeError, match="has no attribute 'Towkey'"):
        getattr(keyturn, "Towkey")  # noqa: B009 - a checker would refuse the name


def test_an_import_alone_loads_nothing_else_of_ours() -> None:
    loaded = loaded_by("import keyturn")

    assert {name for name in loaded if name.startswith("keyturn")} == {"keyturn"}


FOREIGN = {"babel", "cel", "redis", "slack_bolt", "slack_sdk", "typer", "aiohttp.web"}
SMALL = {
    "arguments",
    "background",
    "clock",
    "secret_variables",
    "setting_forms",
    "tracing",
    "validation_errors",
}


@pytest.mark.slow
def test_the_agents_side_loads_no_server_no_redis_and_no_slack() -> None:
    loaded = loaded_by("import keyturn.agent")

    assert not loaded & FOREIGN
    gateway = {
        name.split(".")[2] for name in loaded if name.startswith("keyturn.gateway.")
    }
    assert gateway - SMALL <= {"client", "errors", "failures", "gates", "protocol"}
    assert not [one for one in loaded if one.startswith(("keyturn.bot", "keyturn.cli"))]


WITHOUT_STORE = """
FOREIGN = ("babel", "cel", "redis", "slack_sdk", "slack_bolt", "typer")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "aiohttp.web" or name.partition(".")[0] in FOREIGN:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from keyturn import Keyturn
Keyturn.remote("https://gateway.example", api_key="tk_1")
"""


@pytest.mark.slow
def test_a_process_with_a_key_alone_needs_no_package_of_a_store() -> None:
    loaded = loaded_by(f"exec({WITHOUT_STORE!r})")

    assert "keyturn.gateway.remote.program" in loaded
    assert not loaded & FOREIGN


def test_the_sandbox_loads_nothing_else_of_ours() -> None:
    loaded = loaded_by("import keyturn.sandbox.serve")

    others = tuple(f"keyturn.{name}" for name in LINKS if name != "sandbox")
    assert not {name for name in loaded if name.startswith(others)}


@pytest.mark.parametrize("name", LINKS)
def test_each_package_is_the_folder_at_the_top_of_the_repository(name: str) -> None:
    module = importlib.import_module(f"keyturn.{name}")

    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == ROOT / name / "__init__.py"


def test_the_plugin_of_pytest_belongs_to_the_namespace() -> None:
    points = distribution("keyturn").entry_points

    assert {point.value.split(".")[0].split(":")[0] for point in points} == {"keyturn"}


# With the extra `client` alone; `local_gate` is for the gateway's process.
@pytest.mark.parametrize(
    "module",
    [
        "connect.once",
        "connect.openai_agents",
        "connect.pydantic_ai",
        "gateway.client.claiming",
    ],
)
def test_a_connector_loads_no_langchain_and_no_store(module: str) -> None:
    loaded = loaded_by(f"import keyturn.{module}")

    assert not loaded & (FOREIGN | {"langchain", "langchain_core", "langgraph", "yaml"})
    assert "keyturn.agent" not in loaded
