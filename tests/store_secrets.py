"""The secrets with which the processes of tests seal their data."""

from __future__ import annotations

SECRETS = (b"the secret of all of these tests",)

ENV = {"KEYTURN_SECRET": SECRETS[0].hex()}
"""The same for programs that read their settings from the environment."""

SEAL_KEY = b"a key of the buttons in tests"
