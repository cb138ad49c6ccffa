"""What docs/embedding.md shows works as it stands there."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
CODE = blocks("python", PAGE)


def test_the_program_runs_an_agent_to_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yml").write_text(blocks("yaml", PAGE)[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()

    with contextlib.redirect_stdout(said):
        exec(compile(CODE[0], "embedding.md", "exec"), {"__name__": "page"})  # noqa: S102 - the page's own code

    assert "Order 78377 is a desk chair for 312.50." in said.getvalue()


def test_the_plain_node_compiles() -> None:
    names: dict[str, object] = {"__name__": "page"}

    exec(compile(CODE[1], "embedding.md", "exec"), names)  # noqa: S102 - the page's own code

    assert hasattr(names["graph"], "ainvoke")


async def test_the_sandbox_is_a_fixture_of_pytest(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(CODE[2])
    pytester.makeini("[pytest]\nasyncio_mode = auto")

    result = pytester.runpytest_subprocess("-q")

    result.assert_outcomes(passed=1)
