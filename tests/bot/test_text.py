"""Shown text has nothing hidden, and every cut is visible."""

from __future__ import annotations

import re
import time
import unicodedata
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.cards.listing import MAX_WORDS, changes_of, shown_lines, word_diff
from keyturn.bot.cards.warnings import homoglyph_warnings
from keyturn.bot.text import EMPTY, escape_mrkdwn, excerpt, fit, reveal
from keyturn.gateway.approvals.invisible_characters import DEFAULT_IGNORABLE, has_hidden
from tests.bot.samples import an_item
from tests.bot.strategies import hostile
from tests.levels import is_deep

Form = Literal["NFC", "NFD"]
IGNORABLE = {
    chr(point) for first, last in DEFAULT_IGNORABLE for point in range(first, last + 1)
}
HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
HOSTILE = st.text(
    st.characters()
    | st.sampled_from(" \t\n\r\u202e\u200b\u3164\ufe0f\u0301\u0338⟦⟧aeé<&>*`"),
    max_size=400,
)


@pytest.mark.slow
def test_no_hidden_code_point_of_all_unicode_survives_raw() -> None:
    # The other planes hold ideographs or nothing, which takes most of the time.
    planes = range(17) if is_deep() else (0, 1, 14, 16)
    every = [chr(0x10000 * plane + at) for plane in planes for at in range(0x10000)]
    must_go = {
        character
        for character in every
        if unicodedata.category(character) in HIDDEN_CATEGORIES
    } | IGNORABLE
    must_go -= set(" \n\t")

    shown = reveal("".join(every))

    assert not must_go & set(shown)
    assert not [character for character in must_go if not has_hidden(character)]
    marked = {chr(int(point, 16)) for point in re.findall("⟦U\\+([0-9A-F]+)⟧", shown)}
    assert must_go <= marked


ORDINARY = (
    "plain ASCII, {'json': [1, 2.5]}\n\tindented, user_name example.com ... \n\n",
    "Zoë Ångström, naïve café, Đặng Thái Sơn, Łódź, à/hoặc",
    "Ελληνική Δημοκρατία",
    "Привет world, IT-отдел, почта.рф, Сергей, ёлка",
    "\u041d\u0410 \u0420\u041e\u0421\u0422: все слова, вес \u0430 \u043e",
    "日本語のテキスト、Tシャツ, iPhone\u3092\u4f7f\u3046 ガス代, 한국어 문장",
    "नमस्ते दुनिया",
    "שָׁלוֹם עֲלֵיכֶם",
    "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f",
    "ภาษาไทย",
    "👍🏽🇩🇪 £5 → €6 ½ №1 ©, Δt, 2πr",
)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("text", ORDINARY)
def test_text_of_many_languages_is_shown_as_it_is(text: str, form: Form) -> None:
    text = unicodedata.normalize(form, text)

    assert reveal(text) == text
    assert not has_hidden(text)
    assert homoglyph_warnings(text) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("invoice\u202efdp.exe", "invoice⟦U+202E⟧fdp.exe"),
        ("pay\u200bpal", "pay⟦U+200B⟧pal"),
        ("a\u00a0b\u3000c", "a⟦U+00A0⟧b⟦U+3000⟧c"),
        ("a\r\nb\x00\x1b[2J", "a⟦U+000D⟧\nb⟦U+0000⟧⟦U+001B⟧[2J"),
        ("\ud800", "⟦U+D800⟧"),
        ("❤\ufe0e 👩\u200d🍕", "❤⟦U+FE0E⟧ 👩⟦U+200D⟧🍕"),
        ("é" + "\u0301" * 5, "é" + "\u0301" * 4 + "⟦U+0301⟧"),
        ("e" + "\u0301" * 6, "e" + "\u0301" * 4 + "⟦U+0301⟧⟦U+0301⟧"),
        ("\u0301a", "⟦U+0301⟧a"),
        ("a\u202e\u0301", "a⟦U+202E⟧⟦U+0301⟧"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("a\n\n\n\nb", "a\n⟦3 blank lines⟧\nb"),
        ("a\n \t\n\n  \n\nb", "a\n⟦4 blank lines⟧\nb"),
        ("a" + "\n" * 5_001 + "b", "a\n⟦5,000 blank lines⟧\nb"),
        ("a" + "\t" * 81 + "b", "a⟦81 spaces or tabs⟧b"),
    ],
)
def test_what_hides_is_shown_as_a_mark(text: str, shown: str) -> None:
    assert reveal(text) == shown


@settings(deadline=None)  # the machine may be busy
@given(HOSTILE)
def test_revealing_leaves_nothing_hidden_and_twice_is_once(text: str) -> None:
    shown = reveal(text)

    assert not has_hidden(shown)
    assert reveal(shown) == shown


WORDS = st.from_regex(r"[a-zé0-9.-]{1,10}", fullmatch=True)


@given(st.lists(WORDS, min_size=60, max_size=90), st.sampled_from(" \n,"))
def test_nothing_is_cut_inside_a_word_or_a_number(words: list[str], gap: str) -> None:
    seen = excerpt(gap.join(words), 150)
    label = fit(" ".join(words), 60)

    head, _, rest = seen.partition("\n⟦")
    shown = [*head.split(gap), *rest.partition("⟧\n")[2].split(gap)]
    assert {*shown, *label.removesuffix("…").split(" ")} <= {*words, ""}


@settings(deadline=None)  # the machine may be busy
@given(HOSTILE, st.integers(80, 200))
def test_an_excerpt_counts_what_it_left_out(text: str, limit: int) -> None:
    seen = excerpt(text, limit)

    assert len(seen) <= limit
    assert not has_hidden(seen)
    whole = reveal(text)
    if len(whole) <= limit:
        assert seen == whole
        return
    (missing,) = re.findall(r"\n⟦([0-9,]+) characters not shown here⟧\n", seen)[:1]
    assert 0 < int(missing.replace(",", "")) <= len(text)


def test_a_cut_tears_no_accent_flag_skin_tone_or_syllable() -> None:
    for letter in ("e\u0301", "🇩🇪", "👍🏽", "\u1100\u1161", "नि"):
        for limit in range(80, 90):
            seen = excerpt(letter * 100, limit)
            head, _, rest = seen.partition("\n⟦")

            assert head.replace(letter, "") == ""
            assert rest.partition("⟧\n")[2].replace(letter, "") == ""


def test_an_endless_letter_is_cut_all_the_same() -> None:
    assert len(excerpt("\u1100" + "\u1161" * 10_000, 100)) > 40
    assert len(excerpt("क" + "\u093e" * 10_000, 100)) > 40


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("exactly 10", "exactly 10"),
        ("exactly 11!", "exactly …"),
        ("exactly11!!", "exactly11…"),
        ("", EMPTY),
        ("ab\ncd", "ab…"),
        ("a\n", "a⟦U+000A⟧"),
        ("ab\u202e", "ab⟦U+202E⟧"),
        ("12345678e\u0301x", "12345678…"),
    ],
)
def test_a_cut_label_ends_with_an_ellipsis(text: str, shown: str) -> None:
    assert fit(text, 10) == shown


@settings(deadline=None)  # the machine may be busy
@given(HOSTILE, st.integers(7, 100))
def test_a_label_keeps_its_limit_on_one_visible_line(text: str, limit: int) -> None:
    shown = fit(text, limit)

    assert 1 <= len(shown) <= limit
    assert "\n" not in shown
    assert "\t" not in shown
    assert not has_hidden(shown)


def test_escaped_text_holds_no_mention_or_link() -> None:
    assert (
        escape_mrkdwn("<!channel> & <@U1> &lt;")
        == "&lt;!channel&gt; &amp; &lt;@U1&gt; &amp;lt;"
    )


def test_hosts_and_paths_in_the_usual_form_raise_no_warning() -> None:
    assert homoglyph_warnings("münchen.de, jos\u00e9@shop.example, r\u00e9s.pdf") == []


JOSE = "Jos\u00e9"
APART = unicodedata.normalize("NFD", JOSE)
UNUSUAL = "is not in Unicode's usual form (NFC), so another text can look the same"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("Pay \u0440\u0430ypal", "\u0440\u0430ypal mixes Cyrillic and Latin letters"),
        ("\u0391pple", "\u0391pple mixes Greek and Latin letters"),
        (
            "u_\u0438\u043c\u044f",
            "u_\u0438\u043c\u044f mixes Cyrillic and Latin letters",
        ),
        # The same host twice is named once.
        (
            "https://p\u0430ypal.com/login p\u0430ypal.com",
            "p\u0430ypal.com (xn--pypal-4ve.com) mixes Cyrillic and Latin letters",
        ),
        (
            "\uff50\uff41\uff59.com",
            "\uff50\uff41\uff59.com (pay.com) mixes Fullwidth and Latin letters",
        ),
        # Marks and hidden characters in between.
        ("p\u0300\u0430ypal", "p\u0430ypal mixes Cyrillic and Latin letters"),
        ("p\u200b\u0430ypal", "p\u0430ypal mixes Cyrillic and Latin letters"),
        (
            "to \u0430\u200b\u0441\u0435",
            "\u0430\u0441\u0435 reads as Latin and has Cyrillic letters",
        ),
        (
            "\u0391\u03a4\u039c",
            "\u0391\u03a4\u039c reads as Latin and has Greek letters",
        ),
        (f"to: {APART}@shop.example, \u00e9", f"{APART}@shop.example {UNUSUAL}"),
        (f"{APART}.pdf, \u00e9t\u00e9", f"{APART}.pdf {UNUSUAL}"),
        (
            f"from {JOSE}\nto {APART}, {APART}.",
            f"{JOSE} stands here in two Unicode forms that look the same",
        ),
    ],
)
def test_a_word_that_can_be_taken_for_another_is_named(text: str, warning: str) -> None:
    assert homoglyph_warnings(text) == [warning]


@settings(deadline=None)  # the machine may be busy
@given(HOSTILE)
def test_looking_for_mixed_alphabets_never_crashes(text: str) -> None:
    for found in homoglyph_warnings(text):
        assert any(why in found for why in (" and ", " stands here ", " is not in "))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "é" + "a-" * 32_000,
        "é" + "a." * 32_000,
        "\n " * 32_000 + "x",
        "\n\n\nx" * 16_000,
        "\u1161" * 64_000,
        "e" + "\u0301" * 64_000,
        ("a" + "\u0301\u0323" * 100 + " ") * 320,
    ],
)
def test_64_kib_made_to_be_slow_are_not(text: str) -> None:
    before = time.process_time()

    excerpt(text, 3_000)
    fit(text, 75)
    homoglyph_warnings(text)

    assert time.process_time() - before < 2


SAME, REMOVED, ADDED = "", "-", "+"
_words = st.lists(st.sampled_from(["a", "b", " ", "\n", "⟦+x⟧", "\u202e"])).map("".join)
_texts = st.one_of(hostile, _words)


def told(before: str, after: str) -> str:
    return "\n".join(line for _, line in shown_lines(word_diff(before, after)))


@given(_texts, _texts)
def test_the_parts_give_both_texts_back(before: str, after: str) -> None:
    parts = word_diff(before, after)

    assert "".join(part.text for part in parts if part.sign != ADDED) == before
    assert "".join(part.text for part in parts if part.sign != REMOVED) == after
    assert all(part.text for part in parts)


@given(_texts, _texts)
def test_only_changes_are_marked_and_nothing_hidden(before: str, after: str) -> None:
    text = told(before, after)

    assert reveal(text) == text
    assert (before == after) == (not re.search(r"⟦[-+]", text))


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (
            "Dear Ana,\nwe refund 20.00 euros for your order.",
            "Dear Ana,\nwe send back 20.00 euros for the order.",
            "Dear Ana,\nwe ⟦-refund⟧⟦+send back⟧ 20.00 euros for ⟦-your⟧⟦+the⟧ order.",
        ),
        ("the red fox", "the tall dog", "the ⟦-red fox⟧⟦+tall dog⟧"),
        # A text cannot imitate a change.
        ("a b", "a ⟦+c⟧", "a ⟦-b⟧⟦+⟦U+27E6⟧+c⟧⟧"),
    ],
)
def test_changed_words_are_marked_in_place(before: str, after: str, shown: str) -> None:
    assert told(before, after) == shown


def test_unchanged_words_far_from_a_change_are_counted() -> None:
    middle = "word " * 100
    text = told(f"1 {middle}end", f"2 {middle}fin")

    assert "characters unchanged⟧" in text
    assert text.startswith("⟦-1⟧⟦+2⟧ word word")
    assert text.endswith("word ⟦-end⟧⟦+fin⟧")
    assert len(text) < 200


def test_two_long_texts_are_one_change_and_take_no_time() -> None:
    before, after = ("a b " * MAX_WORDS, "b a " * MAX_WORDS)

    kinds = [part.sign for part in word_diff(f"x {before}", f"y {after}")]

    assert kinds == [REMOVED, ADDED, SAME]


def test_a_small_edit_of_a_long_text_shows_the_words_that_changed() -> None:
    letter = "Dear customer, " + "thank you for waiting. " * 100
    before, after = f"{letter}We refund 20 euros.", f"{letter}We refund 30 euros."

    rows = changes_of(an_item({}), {"body": before}, {"body": after}, budget=300)

    assert "refund ⟦-20⟧⟦+30⟧ euros." in rows
    assert rows.startswith("body\n~ ⟦")


def test_only_the_lines_with_changed_words_are_marked_as_changed() -> None:
    before = "Hello Sam,\n\nwe have taken care of it.\n\namount  1 → 2 ⟧\nThe shop"
    after = before.replace("taken care of it", "sent\nyour refund")

    rows = changes_of(an_item({}), {"body": before}, {"body": after}, budget=500)

    assert rows.splitlines() == [
        "body",
        "| Hello Sam,",
        "| ",
        "~ we have ⟦-taken care of it.⟧⟦+sent",
        "~ your refund.⟧",
        "| ",
        "| amount  1 → 2 ⟧",
        "| The shop",
    ]
