"""Fixtures of the forgeries."""

from __future__ import annotations

import pytest

from tests.security.forging import (
    TENANT,
    Attack,
)
from tests.service.harness import ServiceHarness
from twokey.gateway.store.store import Store


@pytest.fixture
def attack(store: Store) -> Attack:
    return Attack(ServiceHarness(store), store.keys_of_tenant(TENANT))
