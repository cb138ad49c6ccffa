"""Generate docs/policy-reference.md from the models of the policy file.

``python -m tests.docs.policy_reference`` writes the page. Keys, types and defaults come
from the models, and sentences from their docstrings.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from keyturn.gateway.policy import fields
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject

PAGE = Path(__file__).parents[2] / "docs" / "policy-reference.md"

_NAMES = {
    "Duration": "time",
    "UserId": "user id",
    "UsergroupId": "user group id",
    "ChannelRef": "channel",
    "RoleName": "role",
    "Needs": "people or requirement",
    "Reviewers": "people",
    "ArgsPath": "path",
    "ArgsPaths": "paths",
    "Template": "template",
    "Host": "host",
    "Link": "link",
    "Totals": "totals",
    "Share": "share",
    "Condition": "condition",
    "Reason": "line",
    "CountedBy": "resource",
    "EscalationTarget": "target",
    "Day": "day",
    "ExactName": "name",
    "RequirementName": "requirement",
    "Zone": "time zone",
}
"""Type in `keyturn.gateway.policy.fields` to its name on the page."""

_PLAIN = {
    JsonObject: "mapping",
    bool: "boolean",
    int | float: "number",
    int: "integer",
    str: "text",
    Tier: "[tier](policy.md#tiers)",
}
_SUFFIXES: Mapping[object, str] = {dict: ".NAME", tuple: "[]"}
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_HEAD = """\
# Policy reference

Every key of a policy file; [policy.md](policy.md) is the guide.
This page is generated from `gateway/policy` by `python -m tests.docs.policy_reference`.

`NAME` is a name that you choose, and `[]` is an entry of a list.
Keys are optional, except *required* ones.
Unknown keys, duplicate keys, keys without a value, YAML anchors and tags are refused.
If several places set the same key, the narrowest one decides:
tool of an agent, tool, agent, tier, `defaults`.

## Types

| Type | How to write it |
|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    documented = _docstrings(ast.parse(inspect.getsource(fields)))
    types = dict.fromkeys(
        f"| {_NAMES[name]} | {_markdown(text)} |"
        for name, text in documented.items()
        if name in _NAMES
    )
    places = models()
    sections = [_section(model, places) for model in places]
    return "\n\n".join([_HEAD + "\n".join(types), *sections]) + "\n"


def models() -> dict[type[BaseModel], str]:
    """Return every model of the file with its place, such as ``tools.NAME.batch``."""
    places: dict[type[BaseModel], str] = {}
    _collect(Policy, "", places)
    return places


def _collect(
    model: type[BaseModel], place: str, places: dict[type[BaseModel], str]
) -> None:
    """Add a model and all models below it; a shared one keeps its first place."""
    places[model] = place
    for key, hint in _hints(model).items():
        for inner, suffix in _models_in(hint):
            if inner not in places:
                _collect(inner, f"{place}.{key}{suffix}".lstrip("."), places)


def _models_in(hint: object) -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint, ""
    suffix = _SUFFIXES.get(get_origin(hint), "")
    for part in get_args(hint):
        for model, inner in _models_in(part):
            yield model, suffix + inner


def _hints(model: type[BaseModel]) -> dict[str, object]:
    """Return the type of each key, as the source has it."""
    hints = get_type_hints(model, include_extras=True)
    return {one.alias or name: hints[name] for name, one in model.model_fields.items()}


def _section(model: type[BaseModel], places: Mapping[type[BaseModel], str]) -> str:
    place = places[model]
    lines = [f"## `{place}`" if place else "## The file", ""]
    lines += [_markdown(inspect.cleandoc(model.__doc__ or "")), ""]
    wider = next((one for one in places if one in model.__bases__), None)
    if wider:
        lines += [f"It has the keys of {_link(places[wider])}, and these:", ""]
    lines += ["| Key | Value | Meaning |", "|---|---|---|"]
    [body] = ast.parse(inspect.getsource(model)).body
    hints, meanings = _hints(model), _docstrings(body)
    for name, field in model.model_fields.items():
        if wider and name in wider.model_fields:
            continue
        if name not in meanings:
            raise LookupError(f"Write a docstring below {model.__name__}.{name}.")
        key = field.alias or name
        type_ = _type(hints[key], places)
        type_ += _bounds(field.metadata) if type_ == "integer" else ""
        cells = (f"`{key}`", f"{type_}{_default(field)}", _markdown(meanings[name]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _docstrings(node: ast.AST) -> dict[str, str]:
    """Return the docstrings that follow assignments in a class or a module."""
    body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
    found: dict[str, str] = {}
    for before, after in pairwise(body):
        match before, after:
            case (
                (ast.AnnAssign(target=ast.Name(id=name)))
                | (ast.Assign(targets=[ast.Name(id=name)])),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found


def _type(hint: object, places: Mapping[type[BaseModel], str]) -> str:
    """Return a type in words."""
    if name := _name(hint):
        return name
    if isinstance(hint, type):
        return _link(places[hint])
    parts = [one for one in get_args(hint) if one not in {NoneType, Ellipsis}]
    match get_origin(hint):
        case typing.Annotated:
            return _type(parts[0], places) + _bounds(parts[1:])
        case typing.Literal:
            return _either(f"`{_yaml(one)}`" for one in parts)
        case builtins.dict:
            key, value = (_type(one, places) for one in parts)
            return value if "NAME" in value else f"mapping: {key} to {value}"
        case origin:
            words = _either(_type(one, places) for one in parts)
            return f"list: {words}" if origin is tuple else words


def _name(hint: object) -> str:
    """Return the name of a plain type, or of one of `fields` to which a field adds."""
    parts = _parts(hint)
    for name, word in _NAMES.items():
        known = _parts(getattr(fields, name))
        if parts[: len(known)] == known:
            return word
    if isinstance(hint, type) and issubclass(hint, StrEnum) and hint is not Tier:
        return _either(f"`{value}`" for value in hint)
    return next((word for one, word in _PLAIN.items() if one == hint), "")


def _link(place: str) -> str:
    return f"[`{place}`](#{_anchor(place)})"


def _parts(hint: object) -> tuple[object, ...]:
    """Return what an ``Annotated`` consists of; its metadata are one level deep."""
    return get_args(hint) if get_origin(hint) is typing.Annotated else ()


def _bounds(metadata: Iterable[object]) -> str:
    """Return the bounds of a number, such as ``, 1 to 20``."""
    found: dict[type, object] = {}
    for one in metadata:
        for each in one.metadata if isinstance(one, FieldInfo) else (one,):
            if isinstance(each, Ge | Le):
                found[type(each)] = each.ge if isinstance(each, Ge) else each.le
    return f", {found[Ge]:,} to {found[Le]:,}" if len(found) == 2 else ""


def _default(field: FieldInfo) -> str:
    """Return the default of a key, to be put behind its type."""
    if field.is_required():
        return "; required"
    value: object = field.get_default(call_default_factory=True, validated_data={})
    is_unset = isinstance(value, BaseModel) or value in (None, "", (), {})
    return "" if is_unset else f"; default `{_yaml(value)}`"


def _yaml(value: object) -> str:
    """Return a value as a policy file has it."""
    if isinstance(value, timedelta):
        seconds = int(value.total_seconds())
        unit = next(unit for unit, each in _UNITS.items() if seconds % each == 0)
        return f"{seconds // _UNITS[unit]}{unit}"
    if isinstance(value, tuple):
        values = cast("tuple[object, ...]", value)
        return f"[{', '.join(map(_yaml, values))}]"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return f'"{text}"' if text.startswith("#") else text


def _either(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _markdown(text: str) -> str:
    """Return a docstring as Markdown, a paragraph a line."""
    paragraphs = [re.sub(r"\s+", " ", one).strip() for one in text.split("\n\n")]
    written = "\n\n".join(paragraphs).replace("``", "`").replace("|", r"\|")
    return re.sub(r"`docs/([\w-]+\.md)`", r"[\1](\1)", written)


def _anchor(place: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w-]", "", place.lower())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
