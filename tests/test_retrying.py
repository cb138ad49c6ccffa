"""How long a run is retried can be set, and a wrong length is refused in a sentence."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.setting_forms import RetrySettings


def load(tmp_path: Path, text: str) -> Settings:
    """Load settings."""
    file = tmp_path / "keyturn.yml"
    file.write_text(text)
    return Settings.load(file, {})


def test_a_run_is_retried_for_as_long_as_the_settings_say(tmp_path: Path) -> None:
    found = load(tmp_path, "retries: {limit: 2d, unknown_limit: 90s}").retries

    assert (found.limit, found.unknown_limit) == (
        timedelta(days=2),
        timedelta(seconds=90),
    )
    assert load(tmp_path, "tenant: default").retries.limit == timedelta(hours=24)


def test_each_default_can_be_written_down(tmp_path: Path) -> None:
    text = "limit: 24h, unknown_limit: 15m, first: 500ms, longest: 60s"

    found = load(tmp_path, f"retries: {{{text}, notify_after: 5s}}").retries

    assert found == RetrySettings()
    assert load(tmp_path, "retries: {first: 2s}").retries.first == timedelta(seconds=2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("retries: {limit: soon}", "'soon' is not a duration; write 90s"),
        ("retries: {limit: 24}", "24 is not a duration"),
        ("retries: {limit: 500ms}", "'500ms' is not a duration"),
        ("retries: {first: 0ms}", "'0ms' is not a duration"),
        ("retries: {limit: 0s}", "'0s' is not a duration"),
        ("retries: {limit: 31d}", "'31d' is longer than 30 days"),
        ("retries: {limits: 1h}", "limits"),
    ],
)
def test_a_wrong_length_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, text)

    assert sentence in str(refused.value)
