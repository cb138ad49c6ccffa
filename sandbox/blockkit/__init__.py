"""Validate Block Kit payloads by Slack's rules and limits.

The validator is strict: unknown members are problems. The bot validates every outgoing
payload with it, and the sandbox answers with its error names. It imports only the
standard library.
"""

from keyturn.sandbox.blockkit.jsontypes import JSON, ReadOnlyJSON
from keyturn.sandbox.blockkit.messages import validate_message
from keyturn.sandbox.blockkit.problem import Problem
from keyturn.sandbox.blockkit.views import validate_home, validate_modal

__all__ = [
    "JSON",
    "Problem",
    "ReadOnlyJSON",
    "validate_home",
    "validate_message",
    "validate_modal",
]
