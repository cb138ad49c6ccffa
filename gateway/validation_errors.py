"""Format a document's validation errors as sentences with the next step."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable
from types import NoneType, UnionType
from typing import Annotated, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]

ProblemAt = tuple[Path, str]
"""A place in a file, and its problem as a sentence."""

_MOST_NAMES = 40
_MOST_TRIED = 2_000
_MISSPELLED = 0.85
"""Least similarity of a misspelled name to the intended name."""
_LONGEST_NAME = 80

_NEEDED = {
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "dict_type": "a mapping is needed here, lines of 'name: value'",
    "greater_than_equal": "write {ge} or more",
    "int_from_float": "write a whole number",
    "int_parsing": "write a whole number, without quotes",
    "int_type": "write a whole number, without quotes",
    "less_than_equal": "write {le} or less",
    "list_type": "a list is needed here, such as [a, b]",
    "model_type": "a mapping is needed here, lines of 'name: value'",
    "path_type": "write the name of a file or folder, in quotes",
    "string_type": "text is needed here; put it in quotes",
    "too_long": "write at most {max_length}",
    "too_short": "write at least {min_length}",
    "tuple_type": "a list is needed here, such as [a, b]",
    "zoneinfo_str": "write a time zone, such as Europe/London",
}
"""Pydantic's type of a problem to its next step."""


def sentence(
    details: ErrorDetails, model: type[BaseModel], *, shows_values: bool = False
) -> str:
    """Describe a problem that pydantic found, in one sentence.

    Args:
        details: one entry of ``ValidationError.errors()``.
        model: the validated model, to suggest a near name.
        shows_values: the document contains no secret, so quote its values. A wrong
            choice among a few words is quoted in any case.
    """
    path = details["loc"]
    name = dotted(path)
    match details["type"]:
        case "extra_forbidden":
            key, parent = str(path[-1]), _model_at(model, path[:-1])
            hint = near(key, _fields(parent))
            return f"Unknown key {name!r}; {hint}"
        case "missing":
            return f"{name!r} is missing{'; add it' if shows_values else ''}."
        case "enum" | "literal_error":
            hint = _choice(details["input"], details.get("ctx", {})["expected"])
            return f"{name!r} is {shown(details['input'])}; {hint}"
        case "value_error":
            found = str(details.get("ctx", {}).get("error", details["msg"]))
            return f"{name!r}: {found}" if name else found
        case kind:
            form = _form_at(model, path) if kind == "string_pattern_mismatch" else ""
            needed = f"write {form}" if form else _NEEDED.get(kind)
            needed = needed.format(**details.get("ctx", {})) if needed else ""
            # In settings a value may be a misplaced secret.
            held = f" is {shown(details['input'])};" if shows_values else ":"
            return f"{name!r}{held} {needed or details['msg']}."


def near(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: the near name, else the list of all names."""
    names = sorted(known)
    # difflib compares each pair of letters: a long key among many names takes seconds.
    word, tried = word[:_LONGEST_NAME], names[:_MOST_TRIED]
    close = difflib.get_close_matches(word, tried, n=1)
    # `INFO` resembles no name, but `info` may.
    close = close or difflib.get_close_matches(word.lower(), tried, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    listed = ", ".join(names[:_MOST_NAMES])
    more = ", …" if len(names) > _MOST_NAMES else "."
    return f"use one of {listed}{more}" if names else "there is none yet, so add it."


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return the question for a misspelling of a known name; else ""."""
    if word in known:
        return ""
    tried = sorted(known)[:_MOST_TRIED]
    # Stricter than `near`: the names of two tools may be very similar.
    close = difflib.get_close_matches(word[:_LONGEST_NAME], tried, 1, _MISSPELLED)
    return f"did you mean {close[0]!r}?" if close else ""


def dotted(path: Path) -> str:
    """Return a path in readable form: ``tools.refund.allow[0]``."""
    text = ""
    for token in path:
        if token == "[key]":  # noqa: S105 - pydantic's mark for a key, no secret
            continue
        text += f"[{token}]" if isinstance(token, int) else f".{shortened(token)}"
    return text.removeprefix(".")


def shortened(name: str) -> str:
    """Return a name, shortened for a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def shown(value: object) -> str:
    """Return a value in its author's notation, shortened."""
    if isinstance(value, str):
        return repr(shortened(value))
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return shortened(text)


def _choice(given: object, expected: str) -> str:
    """Return the end of a sentence: a valid value instead of this one.

    Args:
        given: the value.
        expected: pydantic's list of valid values, such as ``'a' or 'b'``.
    """
    known = re.findall("'([^']*)'", expected) or [expected]
    if str(given) in known:
        return f"write {given} without quotes."
    if len(known) == 1:
        return f"write {known[0]}."
    return near(given if isinstance(given, str) else "", known)


def _form_at(model: type[BaseModel], path: Path) -> str:
    """Return a field's description, which names the form of its texts."""
    while isinstance(path[-1], int):
        path = path[:-1]
    field = _fields(_model_at(model, path[:-1])).get(str(path[-1]))
    return (field.description or "") if field else ""


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """Return the type of the mapping at a path; None if it is not a model."""
    found: object = model
    for token in path:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = _fields(found).get(str(token))
            found = field.annotation if field else None
        else:
            # dict[str, X] and tuple[X, ...]: the type of the selected element.
            found = next((a for a in reversed(get_args(found)) if a is not ...), None)
        if get_origin(found) in {Union, UnionType}:
            found = next(a for a in get_args(found) if a is not NoneType)
        if get_origin(found) is Annotated:
            found = get_args(found)[0]
    is_model = isinstance(found, type) and issubclass(found, BaseModel)
    return cast("type[BaseModel]", found) if is_model else None


def _fields(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    """Return the fields of a model by their names in a document."""
    fields = model.model_fields if model else {}
    return {field.alias or name: field for name, field in fields.items()}
