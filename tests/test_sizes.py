"""A package that grows past its number is noticed."""

from __future__ import annotations

from pathlib import Path

from tests.sizes import grown, lines_of_code


def test_blank_lines_comments_and_docstrings_are_no_code(tmp_path: Path) -> None:
    python, lua = tmp_path / "a.py", tmp_path / "a.lua"
    python.write_text('"""Text\n\nover lines."""\n\nx = """a\nb"""  # why\n\n# c\n')
    lua.write_text("-- why\n\nreturn 1\n")

    assert (lines_of_code(python), lines_of_code(lua)) == (2, 1)


def test_what_grew_is_named_with_both_numbers() -> None:
    found = {"agent": [101, 9], "bot": [50, 5]}

    told = grown(found, {"agent": [100, 8], "bot": [50, 6]})

    assert "agent has 101 lines of code; 100 are allowed." in told
    assert "agent has 9 modules; 8 are allowed." in told
    assert "bot" not in told
    assert not grown(found, {"agent": [101, 9], "bot": [50, 5]})
