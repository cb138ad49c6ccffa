"""The settings and the route of docs/webhooks.md work unchanged."""

from __future__ import annotations

import re

import pytest
import yaml

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.service_settings import WebhookSettings
from keyturn.gateway.webhooks import FIRST_S, LONGEST_S
from tests.docs.reviewing import run
from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")


def test_the_settings_are_settings() -> None:
    [text] = blocks("yaml", PAGE)
    found = WebhookSettings.model_validate(yaml.safe_load(text)["webhooks"])

    assert found.targets["billing-app"].is_of("billing")
    assert not found.targets["billing-app"].is_of("support")


class Program:
    """A program that is handed what its route gets."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses

    async def handle_webhook(
        self, _: dict[str, str], __: bytes, *, graph: object
    ) -> object:
        if self.refuses:
            raise NotVerified("signature_wrong", "no trusted key has signed it")
        return graph


@pytest.mark.parametrize(("refuses", "status"), [(True, 401), (False, 204)])
async def test_the_route_answers_as_it_should(*, refuses: bool, status: int) -> None:
    [route] = blocks("python", PAGE)
    found = await run(route)["keyturn_route"](Program(refuses=refuses), None, {}, b"")

    assert found == status


def test_the_pauses_are_those_that_it_names() -> None:
    assert (FIRST_S, LONGEST_S) == (2, 3_600)
    assert re.search("after 2 seconds .* an hour at most", PAGE)
