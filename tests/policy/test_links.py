"""A link leads to the address in the policy, for any arguments."""

from __future__ import annotations

from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.approvals.policy_decision import Preview
from keyturn.gateway.errors import PolicyError
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy

FILE = """\
version: 1
defaults: {{needs: U0ANA}}
tools:
  refund:
    link: {link}
    redact: [args.card]
"""
ORDER = "https://shop.example/orders/{args.order.id}/?by={args.who}"


def link_of(link: str, **args: JsonValue) -> str:
    policy = load_policy(FILE.format(link=repr(link)), "policy.yml")
    return evaluate(policy, agent="support", tool="refund", args=args).link


def test_values_stand_in_their_places() -> None:
    found = link_of(ORDER, order={"id": 78291}, who="Ana María")

    assert found == "https://shop.example/orders/78291/?by=Ana%20Mar%C3%ADa"


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({"order": {}, "who": "Ana"}, id="missing"),
        pytest.param({"order": {"id": [7]}, "who": "Ana"}, id="a list"),
        pytest.param({"order": {"id": ".."}, "who": "Ana"}, id="another folder"),
        pytest.param({"order": {"id": "x" * 300}, "who": "Ana"}, id="too long"),
    ],
)
def test_without_a_plain_value_there_is_no_link(args: dict[str, JsonValue]) -> None:
    assert link_of(ORDER, **args) == ""


def test_half_a_character_breaks_nothing() -> None:
    link = link_of("https://shop.example/{args.id}", id="\ud800")

    assert link == "https://shop.example/%3F"


def test_a_hidden_value_is_in_no_link() -> None:
    assert link_of("https://shop.example/{args.card}", card="4111") == ""
    assert link_of("https://shop.example/{args.card.number}", card={"number": 4}) == ""


@given(value=st.text(min_size=1, max_size=20))
def test_no_value_leads_elsewhere(value: str) -> None:
    found = link_of("https://shop.example/orders/{args.id}/now", id=value)

    if found:
        parts = urlsplit(urljoin(found, ""))
        assert (parts.scheme, parts.netloc) == ("https", "shop.example")
        assert (parts.query, parts.fragment) == ("", "")
        start, filled, end = parts.path.removeprefix("/").split("/")
        assert (start, unquote(filled), end) == ("orders", value, "now")
        assert not {*found} & {*"<>|\"' \n"}


@pytest.mark.parametrize(
    "link",
    [
        "http://shop.example/orders",
        "https://{args.host}/orders",
        "https://ana@shop.example/orders",
        "https://localhost/orders",
        "https://shop.example/two words",
        "",
    ],
)
def test_what_could_lead_elsewhere_is_refused(link: str) -> None:
    with pytest.raises(PolicyError, match=r"yml:5: .* is not a link; write https"):
        link_of(link)


def test_a_link_has_known_places_and_an_end() -> None:
    with pytest.raises(PolicyError, match=r"'\{id\}' is not known here"):
        link_of("https://shop.example/{id}")
    with pytest.raises(PolicyError, match="it has 321 characters; 300 are the most"):
        link_of("https://shop.example/" + "x" * 300)


def test_a_path_that_the_schema_does_not_have_is_refused() -> None:
    file = FILE.replace(
        "redact: [args.card]",
        "args_schema: {{type: object, properties: {{id: {{type: string}}}}}}",
    )

    with pytest.raises(PolicyError, match=r"link' names 'args\.idd'"):
        load_policy(file.format(link="https://shop.example/{args.idd}"), "policy.yml")


HOSTS = """\
version: 1
defaults: {{link_hosts: {hosts}}}
tools:
  refund:
    link: {link}
"""


def test_a_link_leads_only_to_a_host_of_the_list() -> None:
    allowed = HOSTS.format(hosts="[shop.example]", link="https://shop.example/o")
    other = HOSTS.format(hosts="[shop.example]", link="https://shop.example.org/o")
    no_host = HOSTS.format(hosts="[]", link="https://shop.example/o")

    load_policy(allowed, "policy.yml")
    for file in (other, no_host):
        with pytest.raises(PolicyError, match=r"yml:5: .*not among 'defaults.link_ho"):
            load_policy(file, "policy.yml")


@pytest.mark.parametrize("host", ["https://shop.example", "Shop.example", "a b.c", ""])
def test_a_host_of_the_list_is_a_name_alone(host: str) -> None:
    file = HOSTS.format(hosts=f"['{host}']", link="https://shop.example/o")

    with pytest.raises(PolicyError, match="is no host; write its name alone"):
        load_policy(file, "policy.yml")


PREVIEW = """\
version: 1
defaults: {{needs: U0ANA}}
tools:
  mail:
    preview: {preview}
    args_schema:
      type: object
      properties: {{{names}}}
"""


def preview_of(preview: str, *names: str) -> Preview | None:
    listed = ", ".join(f"{name}: {{}}" for name in names)
    policy = load_policy(PREVIEW.format(preview=preview, names=listed), "policy.yml")
    return evaluate(policy, agent="support", tool="mail", args={}).preview


def test_the_kind_alone_means_the_arguments_of_these_names() -> None:
    found = preview_of("email", "to", "body")

    assert found is not None
    assert [*found.labels] == ["to", "cc", "bcc", "subject", "body"]
    assert preview_of("sql", "statement") == Preview.model_validate("sql")


def test_each_part_can_be_an_argument_of_another_name() -> None:
    found = preview_of(
        "{kind: email, to: args.recipients, body: args.text}", "recipients", "text"
    )

    assert found is not None
    assert (found.labels["recipients"], found.labels["text"]) == ("To", "Body")
    assert found.text == "text"


@pytest.mark.parametrize(
    ("preview", "problem"),
    [
        ("{to: args.to}", r"'tools\.mail\.preview\.kind' is missing"),
        ("{kind: sql, body: args.body}", "'body' is no part of 'sql'; write statement"),
        ("{kind: email, to: to}", "'to' is no whole argument; write args.name"),
        ("{kind: email, to: args.body}", "two parts are the same argument"),
        ("{kind: email, to: args.whom}", r"preview\.to' names 'args\.whom', but"),
        ("sql", r"'tools\.mail\.preview' names 'args\.statement', but 'mail'"),
    ],
)
def test_a_wrong_preview_is_refused(preview: str, problem: str) -> None:
    with pytest.raises(PolicyError, match=rf"yml:5: .*{problem}"):
        preview_of(preview, "to", "subject", "body")


def test_one_agent_can_have_another_preview() -> None:
    file = PREVIEW.format(preview="email", names="body: {}, text: {}") + (
        "agents: {night: {tools: {mail: {preview: {kind: email, body: args.text}}}}}\n"
    )
    policy = load_policy(file, "policy.yml")

    found = evaluate(policy, agent="night", tool="mail", args={}).preview

    assert found is not None
    assert found.text == "text"


def test_an_act_is_one_short_word() -> None:
    act = FILE.replace("link: {link}", "act: {act}")

    policy = load_policy(act.format(act="e-mail"), "policy.yml")

    assert evaluate(policy, agent="support", tool="refund", args={}).act == "e-mail"
    for refused in ("two words", "a" * 17, '"<!channel>"', '""'):
        with pytest.raises(PolicyError, match="is not one word of up to 16 letters"):
            load_policy(act.format(act=refused), "policy.yml")
