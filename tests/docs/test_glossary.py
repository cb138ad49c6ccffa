"""The glossary explains the words of the product, and no others."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.protocol.records import Finding, ItemState, Tier, Verb
from keyturn.gateway.store.runs.jobs import RunState

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
TEXT = GLOSSARY.read_text(encoding="utf-8")
TERMS = re.findall(r"^\| ([^|-][^|]*) \|", TEXT, re.MULTILINE)[1:]
PACKAGES = ("agent", "gateway", "bot", "cli", "sandbox")


def everything_else() -> str:
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    pages.remove(GLOSSARY)
    texts = [path.read_text(encoding="utf-8") for path in (*sources, *pages)]
    return re.sub(r"[_\s]+", " ", " ".join(texts)).lower()


def test_its_words_stand_in_order_and_each_once() -> None:
    assert TERMS
    assert sorted(set(TERMS)) == TERMS


def test_each_of_its_words_is_used_in_code_or_on_another_page() -> None:
    used = everything_else()

    assert [term for term in TERMS if term not in used] == []


@pytest.mark.parametrize("words", [Tier, ItemState, Verb, Finding, Gesture, RunState])
def test_it_names_every_value_that_people_meet(words: type[StrEnum]) -> None:
    assert [word for word in words if f"`{word}`" not in TEXT] == []
