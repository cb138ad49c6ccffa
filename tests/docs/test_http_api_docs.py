"""The settings, requests and answers in docs/http-api.md are correct."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from keyturn.gateway.api.operations import document
from keyturn.gateway.protocol import http_problems
from keyturn.gateway.protocol.http_api import DecideQuestion
from keyturn.gateway.protocol.http_problems import Problem, ProblemKind
from keyturn.gateway.service_settings import ApiSettings

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_settings_are_taken() -> None:
    inline = re.findall(r"`(api: \{.*?\})`", PAGE)
    found = [yaml.safe_load(one)["api"] for one in [*blocks("yaml"), *inline]]

    assert len(found) >= 4
    for one in found:
        assert ApiSettings.model_validate(one).listen


def test_its_bodies_fit() -> None:
    decision, refusal = sorted(
        map(json.loads, blocks("json")), key=lambda one: "type" in one
    )
    decision["action_hash"] = f"sha256:{'0' * 64}"

    assert DecideQuestion.model_validate(decision).decision == "edit"
    assert Problem.model_validate(refusal).type == http_problems.TOO_MANY.type


def test_what_it_names_is_there() -> None:
    paths = json.loads(document())["paths"]
    named = re.findall(r"`(GET|POST) (/[a-z0-9/{}.-]+)`", PAGE)

    assert len(named) >= 8
    assert [one for one in named if one[0].lower() not in paths.get(one[1], {})] == []


def test_each_problem_stands_there_with_what_a_client_does() -> None:
    expected = {
        (
            kind.name,
            str(kind.status),
            "yes" if kind.can_pass else "no",
            type(http_problems.error_of(http_problems.problem(kind, "why"))).__name__,
        )
        for kind in vars(http_problems).values()
        if isinstance(kind, ProblemKind)
    }

    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (.+) \|$", PAGE, re.MULTILINE)
    named = {
        (name, status, repeat, raised)
        for raised, repeat, kinds in rows
        for name, status in re.findall(r"`([a-z-]+)` (\d+)", kinds)
    }
    assert named == expected
