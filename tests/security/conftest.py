"""Fixtures of the forgeries."""

from __future__ import annotations

import pytest

from keyturn.gateway.store.store import Store
from tests.security.forging import (
    TENANT,
    Attack,
)
from tests.service.harness import ServiceHarness


@pytest.fixture
def attack(store: Store) -> Attack:
    return Attack(ServiceHarness(store), store.keys_of_tenant(TENANT))
