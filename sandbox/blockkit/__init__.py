"""Validate Block Kit payloads by Slack's rules and limits.

A strict validator of Block Kit payloads: everything not known here is a problem. The
bot holds every outgoing payload to it, the sandbox answers with its error names. It
imports nothing but the standard library.
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
