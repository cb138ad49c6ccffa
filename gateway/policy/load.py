"""Load and validate a policy file, with line numbers for errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from pydantic import JsonValue

from keyturn.gateway.documents import (
    MAX_PROBLEMS,
    BadDocument,
    Document,
    Problem,
    parse_yaml,
    read_model,
)
from keyturn.gateway.errors import BadJson, PolicyError
from keyturn.gateway.policy.crosscheck import cross_check, schema_problems
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.strict_json import accept, tokens_of
from keyturn.gateway.validation_errors import Path, dotted


class BadPolicy(PolicyError):
    """A policy file cannot be used.

    Attributes:
        problems: all problems of the file; the text has the first.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        more = len(problems) - 1
        others = f" ({more} more; run 'keyturn policy check FILE')" if more else ""
        super().__init__(f"{problems[0].text}{others}", problems[0].location)


def load_policy(text: str, source: str, *, under: str = "") -> Policy:
    """Load a policy from YAML; see `load_with_lines`."""
    return load_with_lines(text, source, under=under)[0]


def load_with_lines(
    text: str, source: str, *, under: str = ""
) -> tuple[Policy, Document]:
    """Load a policy from YAML, with its document for the line numbers.

    Args:
        text: the YAML.
        source: its file name, for ``file:line``.
        under: the top-level key of the policy, if it is part of a file.

    Raises:
        BadPolicy: names the file, the line and a near name for a typo.
    """
    try:
        document = parse_yaml(text, source)
        if under:
            document = document.under(under)
        # Before the model: pydantic accepts an infinite number, which has no digest.
        _check_json(document)
        _check_empty(document)
        policy = read_model(document, Policy, shows_values=True)
    except BadDocument as error:
        raise BadPolicy(error.problems) from error
    # In this order: references are checked against the schemas, which must be sound.
    for check in (schema_problems, cross_check):
        found = islice(check(policy), MAX_PROBLEMS)
        problems = tuple(dict.fromkeys(document.problem(*one) for one in found))
        if problems:
            raise BadPolicy(problems)
    return policy, document


def _check_json(document: Document) -> None:
    try:
        accept(document.value)
    except BadJson as error:
        names = tokens_of(error.pointer)
        path = tuple(int(name) if name.isdecimal() else name for name in names)
        raise BadDocument(
            [document.problem(path, f"{dotted(path)!r}: {error.problem}.")]
        ) from error


def _check_empty(document: Document) -> None:
    """Refuse a key without a value: it would count as missing."""
    problems = [
        document.problem(
            path,
            f"{dotted(path)!r} is empty; write a value, in quotes where it begins with "
            "'#', or remove the key.",
        )
        for path in islice(_empty(document.value, ()), MAX_PROBLEMS)
    ]
    if problems:
        raise BadDocument(problems)


def _empty(value: JsonValue, path: Path) -> Iterator[Path]:
    if value is None and path:
        yield path
    if path[-1:] == ("args_schema",) and path[-3:-2] == ("tools",):
        return  # a JSON Schema has a use for null
    members: Iterable[tuple[str | int, JsonValue]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for token, member in members:
        yield from _empty(member, (*path, token))
