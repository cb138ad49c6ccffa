"""Load a policy file, or name the line of everything that is wrong with it."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.approvals.strict_json import accept
from gateway.documents import (
    BadDocument,
    Document,
    Path,
    Problem,
    parse_yaml,
    read_model,
    sentence,
)
from gateway.errors import BadJson, PolicyError
from gateway.policy.crosscheck import cross_check
from gateway.policy.rules import Policy


class BadPolicy(PolicyError):
    """A policy file cannot be used.

    Attributes:
        problems: everything that is wrong with it; the text names the first.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        more = len(problems) - 1
        others = f" ({more} more; run 'twokey policy check')" if more else ""
        super().__init__(f"{problems[0].text}{others}", problems[0].place)


def load_policy(text: str, source: str, *, under: str = "") -> Policy:
    """Load a policy from YAML.

    Args:
        text: the YAML.
        source: its file name, for ``file:line``.
        under: the top-level key that holds the policy, when it is part of a file.

    Raises:
        BadPolicy: names the file, the line and a near name for a typo.
    """
    try:
        document = parse_yaml(text, source)
        if under:
            document = document.under(under)
        _check_json(document)
        policy = _read(document)
    except BadDocument as error:
        raise BadPolicy(error.problems) from error
    problems = tuple(dict.fromkeys(cross_check(policy, document)))
    if problems:
        raise BadPolicy(problems)
    return policy


def _check_json(document: Document) -> None:
    try:
        accept(document.value)
    except BadJson as error:
        tokens = error.pointer.split("/")[1:]
        path: Path = tuple(int(t) if t.isdigit() else t for t in tokens)
        raise BadDocument([document.problem(path, f"{error.problem}.")]) from error


def _read(document: Document) -> Policy:
    """Read the model; a field that is named after a keyword is named as in the file."""
    try:
        return read_model(document, Policy)
    except BadDocument as error:
        cause = error.__cause__
        if not isinstance(cause, ValidationError):
            raise
        problems = [
            document.problem(details["loc"], _sentence(details))
            for details in cause.errors()
        ]
        raise BadDocument(dict.fromkeys(problems)) from cause


def _sentence(details: ErrorDetails) -> str:
    path = tuple("raise_" if name == "raise" else name for name in details["loc"])
    text = sentence({**details, "loc": path}, Policy)
    return text.replace("raise_", "raise")
