"""Compare how much code each package has with the numbers in ``pyproject.toml``.

A line of code is neither blank, comment nor docstring. A package that grew past its
number fails ``make check``: remove something, or raise the number and say why in the
commit. After a package shrank, ``python -m tests.sizes --lower`` lowers its number.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
    tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(file: Path) -> int:
    """Return how many lines of a Python or Lua file are code."""
    if file.suffix == ".lua":
        rows = (row.strip() for row in file.read_text("utf-8").splitlines())
        return sum(bool(row) and not row.startswith("--") for row in rows)
    with tokenize.open(file) as text:
        code = {
            line
            for token in tokenize.generate_tokens(text.readline)
            if token.type not in _NO_CODE
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(code - set(_docstring_lines(file)))


def _docstring_lines(file: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        text = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield from range(text.lineno, (text.end_lineno or text.lineno) + 1)


def counted(packages: list[str]) -> dict[str, list[int]]:
    """Return lines of code and modules of each package, without those named deeper."""
    lines, modules = Counter[str](), Counter[str]()
    deepest_first = sorted(packages, key=len, reverse=True)
    for top in {package.split("/")[0] for package in packages}:
        for file in [*ROOT.glob(f"{top}/**/*.py"), *ROOT.glob(f"{top}/**/*.lua")]:
            place = file.relative_to(ROOT).as_posix()
            package = next(p for p in deepest_first if place.startswith(f"{p}/"))
            lines[package] += lines_of_code(file)
            modules[package] += 1
    return {package: [lines[package], modules[package]] for package in packages}


def grown(
    found: Mapping[str, Sequence[int]], allowed: Mapping[str, Sequence[int]]
) -> str:
    """Describe the packages above their limit; "" if there is none."""
    rows = [
        f"{package} has {number} {unit}; {most} are allowed."
        for package, limits in allowed.items()
        for number, most, unit in zip(
            found[package], limits, ("lines of code", "modules"), strict=True
        )
        if number > most
    ]
    advice = f"Remove something, or raise the number in {PROJECT.name} with a reason."
    return "\n".join([*rows, advice]) if rows else ""


def main(arguments: Sequence[str]) -> str:
    """Lower the numbers if asked to; return what grew."""
    text = PROJECT.read_text("utf-8")
    allowed = tomllib.loads(text)["tool"]["keyturn"]["sizes"]
    found = counted([*allowed])
    if "--lower" in arguments:
        for package, limits in allowed.items():
            lower = [min(pair) for pair in zip(limits, found[package], strict=True)]
            text = re.sub(rf'(?m)^"{package}" = \[.*', f'"{package}" = {lower}', text)
        PROJECT.write_text(text, "utf-8")
    return grown(found, allowed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
