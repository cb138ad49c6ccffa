"""Copies of records: equal to pydantic's own, and no way around parsing."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import Person
from tests.approvals.builders import an_approval, an_item


def test_a_copy_is_that_of_pydantic_in_all_that_it_holds() -> None:
    """Set fields, dumps, and equality."""
    before = an_approval(an_item())
    item = before.items[0]
    changes = {"rev": 7, "items": (item.with_(owner="worker"),)}

    copied, expected = before.with_(**changes), before.model_copy(update=changes)

    assert copied == expected
    assert type(copied) is type(expected)
    assert copied.model_fields_set == expected.model_fields_set
    assert vars(copied) == vars(expected)
    assert copied.model_dump_json(exclude_unset=True) == expected.model_dump_json(
        exclude_unset=True
    )
    assert repr(copied) == repr(expected)
    assert copied.items[0].requirement is item.requirement


def test_a_copy_leaves_the_first_as_it_was_and_is_frozen() -> None:
    before = Person(team="T0", user="U0ANA")

    copied = before.with_(name="Ana")

    assert before == Person(team="T0", user="U0ANA")
    assert before.model_fields_set == {"team", "user"}
    assert hash(copied) == hash(Person(team="T0", user="U0ANA", name="Ana"))
    with pytest.raises(ValidationError, match="frozen"):
        copied.name = "Ben"  # type: ignore[misc]


def test_a_copied_record_is_parsed_again_where_it_comes_back() -> None:
    """`with_` trusts its values: a record that was written wrongly is not read."""
    wrong = an_approval(an_item()).with_(rev="seven")

    with pytest.raises(ValidationError):
        Approval.model_validate_json(wrong.model_dump_json(warnings=False))
