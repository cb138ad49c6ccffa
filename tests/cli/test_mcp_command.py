"""What a gate is started with: servers, headers, and mistakes in them."""

from __future__ import annotations

import pytest

from keyturn.cli.mcp import parse_header, parse_upstream
from keyturn.connect.mcp.upstreams import UpstreamSpec
from keyturn.gateway.errors import SettingsError


def test_an_upstream_is_a_command_or_a_url() -> None:
    assert parse_upstream("billing=npx -y '@acme/billing mcp'") == UpstreamSpec(
        "billing", command=("npx", "-y", "@acme/billing mcp")
    )
    assert parse_upstream("crm-2 = https://mcp.example/mcp?x=1") == UpstreamSpec(
        "crm-2", url="https://mcp.example/mcp?x=1"
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("npx -y x", "NAME=COMMAND"),
        ("Billing=x", "lower-case"),
        ("a__b=x", "single hyphens"),
        ("a=", "NAME=COMMAND"),
        ("a=http://mcp.example/mcp", "https://"),
        ("a=npx 'x", "cannot be read"),
    ],
)
def test_a_mistake_in_an_upstream_is_named(text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_upstream(text)


def test_a_header_reads_the_environment() -> None:
    env = {"CRM_TOKEN": "s3"}
    assert parse_header("crm=Authorization: Bearer $CRM_TOKEN", env) == (
        "crm",
        "Authorization",
        "Bearer s3",
    )
    assert parse_header("crm=X-Team:7", env) == ("crm", "X-Team", "7")
    with pytest.raises(SettingsError, match="'OTHER', which is not set"):
        parse_header("crm=Authorization:$OTHER", env)
    with pytest.raises(SettingsError, match="UPSTREAM=NAME:VALUE") as error:
        parse_header("crm=s3cret", env)
    assert "s3cret" not in str(error.value)
