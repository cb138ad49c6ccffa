"""mrkdwn is read by Slack's rules: words keep their underscores, controls are seen."""

from typing import Any

import pytest

from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

# Flattened: `b[…]` bold, `i[…]` italic, `s[…]` strike, `c[…]` code, `<…>` control,
# `e[…]` emoji, `u[…]` bare address.
INLINE = {
    "*bold*": "b[bold]",
    "_it_ and ~gone~": "i[it] and s[gone]",
    "`code *x*`": "c[code *x*]",
    "snake_case_name": "snake_case_name",
    "_snake_case_": "i[snake_case]",
    "2*3*4": "2*3*4",
    "a *b c* d": "a b[b c] d",
    "(*b*), *c*.": "(b[b]), b[c].",
    "* not* and *not *": "* not* and *not *",
    "*two\nlines*": "*two\nlines*",
    "**doubled**": "**doubled**",
    "*_both_*": "b[i[both]]",
    "*a `*` b*": "b[a c[*] b]",
    "é*b*é": "é*b*é",
    "*b*é": "*b*é",
    "😀*b*😀": "😀b[b]😀",
    "\U0001d49c*b*": "\U0001d49c*b*",  # a letter that takes two UTF-16 units
    "~a_b~": "s[a_b]",
    "&lt;!here&gt; &amp;amp;": "<!here> &amp;",
    "<!here> <@U1>": "<!here> <@U1>",
    "`<!here>`": "c[<!here>]",
    "<https://a.test|*x*>": "<https://a.test|*x*>",
    "see https://a.test/b_c_d.": "see u[https://a.test/b_c_d].",
    "xhttps://a.test": "xhttps://a.test",
    ":key: 10:30:00 :nope:": "e[key] 10e[30]00 e[nope]",
    "``": "``",
    "<": "<",
    "": "",
}

FLATTEN = """
const tags = {bold: "b", italic: "i", strike: "s", code: "c"};
const flat = (nodes) => nodes.map((n) =>
  n.kind === "text" ? n.text
  : n.kind === "angle" ? `<${n.body}>`
  : n.kind === "emoji" ? `e[${n.name}]`
  : n.kind === "url" ? `u[${n.url}]`
  : `${tags[n.kind]}[${flat(n.nodes)}]`).join("");
const {parseInline, parseMrkdwn} = await import("/static/mrkdwn.js");
"""


@pytest.fixture
def opened(screen: Screen) -> Screen:
    screen.open()
    return screen


def test_inline_marks_follow_word_boundaries(opened: Screen) -> None:
    texts = list(INLINE)

    read = opened.run(
        f"{FLATTEN} return arguments[0].map((t) => flat(parseInline(t)));", texts
    )

    assert dict(zip(texts, read, strict=True)) == INLINE


def test_lines_quotes_and_fences_become_blocks(opened: Screen) -> None:
    cases: dict[str, list[list[str]]] = {
        "a\n> b\n&gt; c\nd": [["lines", "a"], ["quote", "b\nc"], ["lines", "d"]],
        "&gt;&gt;&gt; a\nb": [["quote", "a\nb"]],
        "a ```x *y*\n_z_``` b": [
            ["lines", "a "],
            ["fence", "x *y*\n_z_"],
            ["lines", " b"],
        ],
        "```\n<!here>\n```": [["fence", "<!here>"]],
        "```no end": [["lines", "```no end"]],
    }

    read: Any = opened.run(
        f"{FLATTEN} return arguments[0].map((t) =>"
        " parseMrkdwn(t).map((b) => [b.kind, flat(b.nodes)]));",
        list(cases),
    )

    assert dict(zip(cases, read, strict=True)) == cases


def test_a_long_row_of_marks_is_read_at_once(opened: Screen) -> None:
    took_ms = opened.run(
        f"{FLATTEN} const from = performance.now();"
        " parseMrkdwn(arguments[0]); return performance.now() - from;",
        "*a _b ~c `d <e :f " * 170,
    )

    assert took_ms < 1000
