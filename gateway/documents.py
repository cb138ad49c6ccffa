"""Parse a YAML document into an immutable model, with line numbers for errors.

One strict parser reads all YAML: the YAML 1.2 core schema (``no`` and ``12:30`` are
text), no tags, no anchors (so no bombs), no duplicate keys, keys are text, at most
`MAX_DEPTH` deep and `MAX_TEXT` long (PyYAML takes hours for a million brackets).
"""

from __future__ import annotations

import codecs
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import yaml
from pydantic import BaseModel, JsonValue, ValidationError
from yaml.composer import ComposerError

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.validation_errors import Path, sentence, shortened

MAX_DEPTH = 64
"""Deepest nesting of a document."""

MAX_TEXT = 1_000_000
"""Longest document, in characters."""

MAX_BYTES = 4 * MAX_TEXT
"""Longest file of settings or policy."""

MAX_PROBLEMS = 100
"""Most problems in one error."""

# A problem quotes its value, which may be a whole document.
_LONGEST_TEXT = 1_000

ModelT = TypeVar("ModelT", bound=BaseModel)


class Problem(NamedTuple):
    """One problem: ``file:line`` and a sentence."""

    location: str
    text: str

    def __str__(self) -> str:
        """Return the form an editor can jump to."""
        return f"{self.location}: {self.text}"


class BadDocument(SettingsError):
    """A YAML document cannot be used.

    Attributes:
        problems: all problems, in the order of their lines.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True)
class Document:
    """A parsed document with the line of every value.

    Attributes:
        variables: environment variables in place of a line, where they set the value.
    """

    value: JsonValue
    source: str
    lines: Mapping[Path, int]
    variables: Mapping[Path, str] = field(default_factory=dict[Path, str])

    def line(self, path: Path) -> int:
        """Return the line of a path, or of its nearest parent that has one."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def location(self, path: Path) -> str:
        """Return ``file:line`` of a path, or the variable that sets its value."""
        return self.variables.get(path, f"{self.source}:{self.line(path)}")

    def problem(self, path: Path, text: str) -> Problem:
        """Return a problem at a path."""
        if len(text) > _LONGEST_TEXT:
            half = _LONGEST_TEXT // 2
            text = f"{text[:half]} … {text[-half:]}"
        return Problem(self.location(path), text)

    def under(self, key: str) -> Document:
        """Return the part below a top-level key; its lines are those of the file."""
        if not isinstance(self.value, dict) or key not in self.value:
            raise BadDocument([self.problem((), f"{key!r} is missing.")])
        lines = {path[1:]: at for path, at in self.lines.items() if path[:1] == (key,)}
        return Document(self.value[key], self.source, lines)


def read_text(
    path: pathlib.Path, what: str, *, hint: str = "", at_most: int = MAX_BYTES
) -> str:
    """Return the text of a file.

    Args:
        path: the file.
        what: its content, such as ``the policy``, for errors.
        hint: next step if the file is missing.
        at_most: limit in bytes; less than 0 for no limit.

    Raises:
        SettingsError: it cannot be read, is too long or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            # One byte above the limit reveals a file that is too long, without reading
            # all of it.
            found = file.read(at_most + 1 if at_most >= 0 else -1)
    except FileNotFoundError:
        problem = f"There is no file {str(path)!r} with {what}. {hint}".rstrip()
        raise SettingsError(problem) from None
    except OSError as error:
        raise SettingsError(
            f"{str(path)!r} with {what} cannot be read: {error.strerror}."
        ) from error
    if 0 <= at_most < len(found):
        raise SettingsError(f"{path}:1: This is longer than {at_most} bytes.")
    return as_text(found, str(path))


def as_text(found: bytes, source: str) -> str:
    """Return the text of a file without its byte order mark.

    Raises:
        BadDocument: it is not UTF-8; names the line.
    """
    try:
        return found.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        text = "This is not UTF-8; save it as UTF-8."
        raise BadDocument([Problem(f"{source}:{line}", text)]) from error


def parse_yaml(text: str, source: str) -> Document:
    """Parse one YAML document strictly.

    Args:
        text: the document.
        source: its file name, for ``file:line``.

    Raises:
        BadDocument: it is not YAML, or it is ambiguous.
    """
    # Before PyYAML, which takes hours for a million brackets.
    if len(text) > MAX_TEXT:
        problem = f"This has {len(text)} characters; {MAX_TEXT} is the limit."
        raise BadDocument([Problem(f"{source}:1", problem)])
    try:
        # compose and not load: nodes have lines, and no constructor runs.
        node = yaml.compose(text, Loader=_CoreLoader)
    except _Refused as error:
        raise BadDocument([Problem(f"{source}:{error.line}", str(error))]) from error
    except yaml.MarkedYAMLError as error:
        # At the end of a text, the mark is after its last line.
        last = text.rstrip().count("\n") + 1
        line = min(_line(error.problem_mark), last)
        raise BadDocument([Problem(f"{source}:{line}", _not_yaml(error))]) from error
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, int(error.position))
        problem = f"This is not YAML: {str(error).partition(chr(10))[0]}."
        raise BadDocument([Problem(f"{source}:{line}", problem)]) from error
    reader = _Reader(source)
    value = None if node is None else reader.read(node, ())
    return Document(value, source, reader.lines)


def read_model(
    document: Document,
    model: type[ModelT],
    *,
    shows_values: bool = False,
    context: object = None,
) -> ModelT:
    """Validate a document as a model; an empty document is an empty mapping.

    Args:
        document: the document.
        model: its required model.
        shows_values: it contains no secret, so problems may quote values.
        context: for the validators of the model.

    Raises:
        BadDocument: names the line of every problem, and a near name for a typo.
    """
    value = {} if document.value is None else document.value
    if not isinstance(value, dict):
        text = "A mapping of names to values is needed here."
        raise BadDocument([document.problem((), text)])
    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda one: document.line(one["loc"]))
        problems = [
            document.problem(
                details["loc"], sentence(details, model, shows_values=shows_values)
            )
            for details in found[:MAX_PROBLEMS]
        ]
        # Each once: pydantic reports the same problem for every member of a union.
        raise BadDocument(dict.fromkeys(problems)) from error


_HINTS = {
    r"character '\t'": "indent with blanks, not with tabs",
    "cannot start any token": "put what begins with it in quotes",
    "mapping values are not allowed": "put text with ': ' in it in quotes",
    "unexpected end of stream": "close the quotes",
}
"""Part of a PyYAML message to its next step; the first match counts."""


def _line(mark: yaml.Mark | None) -> int:
    return mark.line + 1 if mark else 1


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, ComposerError):
        return "A second document begins here; remove it, or the line '---'."
    found = error.problem or error.context or ""
    hint = next((f"; {hint}" for part, hint in _HINTS.items() if part in found), "")
    return f"This is not YAML: {found}{hint}."


class _Refused(Exception):
    """YAML that is not accepted, and its line."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        super().__init__(text)


class _CoreLoader(yaml.SafeLoader):
    """SafeLoader with the resolvers of the YAML 1.2 core schema (section 10.3.2)."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node, if it is accepted; refuse before reading on."""
        event = cast("yaml.Event", self.peek_event())  # type: ignore[no-untyped-call] # types-PyYAML leaves it untyped
        self._depth += 1
        text = ""
        # Refused at the event, before an alias is expanded: nine lines of aliases can
        # expand to a billion values.
        if getattr(event, "anchor", None) is not None:
            text = "Anchors and aliases are not accepted; write the value out."
        elif getattr(event, "tag", None) is not None:
            text = "YAML tags are not accepted; remove it."
        elif self._depth > MAX_DEPTH:
            text = "This is nested too deeply; write it flatter."
        if text:
            raise _Refused(_line(cast("yaml.Mark | None", event.start_mark)), text)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own class attribute


_WHOLE = r"[-+]?(?:0|[1-9][0-9]{0,29})"
_POWER = r"(?:[eE][-+]?[0-9]{1,3})"
_TAG = "tag:yaml.org,2002:"
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", _WHOLE, "-+0123456789"),
    ("float", rf"{_WHOLE}(?:\.[0-9]+{_POWER}?|{_POWER})", "-+0123456789"),
):
    _CoreLoader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType] - types-PyYAML leaves it untyped
        _TAG + _name, re.compile(rf"^(?:{_pattern})$"), [*_first.replace("\0", ""), ""]
    )


class _Reader:
    """Turn nodes into JSON values, remembering lines and refusing doubled keys."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}

    def read(self, node: yaml.Node, path: Path) -> JsonValue:
        self.lines.setdefault(path, _line(node.start_mark))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.read(element, (*path, index))
                for index, element in enumerate(node.value)
            ]
        return _SCALARS.get(node.tag.removeprefix(_TAG), str)(str(node.value))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, JsonValue]:
        members: dict[str, JsonValue] = {}
        for key_node, value_node in node.value:
            line = _line(key_node.start_mark)
            # `1:` or `true:` as a key would differ from the written name.
            if key_node.tag != f"{_TAG}str":
                text = "A key has to be text; put it in quotes."
                raise BadDocument([Problem(f"{self.source}:{line}", text)])
            key = str(key_node.value)
            # YAML forbids it, PyYAML keeps the last: half of a policy would be ignored
            # silently.
            if key in members:
                first, name = self.lines[(*path, key)], shortened(key)
                text = f"Key {name!r} appears twice; the first is in line {first}."
                raise BadDocument([Problem(f"{self.source}:{line}", text)])
            self.lines[(*path, key)] = line
            members[key] = self.read(value_node, (*path, key))
        return members


_SCALARS: dict[str, Callable[[str], JsonValue]] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": float,
}
"""Type of a plain value in the core schema to its parser; all else is text."""
