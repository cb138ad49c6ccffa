"""Run agents in the gateway's process, and over HTTP again."""

from __future__ import annotations

from tests.transports import pytest_generate_tests, transport

__all__ = ["pytest_generate_tests", "transport"]
