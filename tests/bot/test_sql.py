"""A statement about a SQL text is true in every dialect, or omitted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.cards.warnings import statement_kinds, without_condition


@pytest.mark.parametrize(
    ("sql", "kinds"),
    [
        ("select 1", "SELECT"),
        ("  -- why\n/* where */ Update t set x = 1;\r\n", "UPDATE"),
        ("SELECT 'DELETE FROM t; --' FROM \"drop\"", "SELECT"),
        ("INSERT INTO t SELECT * FROM u WHERE id = $1", "INSERT"),
        ("CREATE TABLE t AS SELECT 1", "CREATE"),
        ("UPDATE t SET x = (SELECT y FROM u WHERE u.id = t.id)", "UPDATE"),
        ("SELECT 1; DELETE FROM t WHERE id = 7;", "SELECT DELETE"),
        ("SELECT 'it''s'", "SELECT"),
    ],
)
def test_the_kind_of_each_statement_is_said(sql: str, kinds: str) -> None:
    assert " ".join(statement_kinds(sql)) == kinds


UNSURE = [
    pytest.param("SELECT 1 DELETE FROM t", id="two without a semicolon"),
    pytest.param("SELECT 1 EXEC wipe", id="a procedure behind a query"),
    pytest.param("SELECT * INTO copy FROM t", id="a query that writes"),
    pytest.param("WITH x AS (DELETE FROM t) SELECT 1", id="a write in a query"),
    pytest.param("EXPLAIN ANALYZE DELETE FROM t", id="another first word"),
    pytest.param("CREATE TRIGGER a BEGIN DELETE FROM t; END", id="a body"),
    pytest.param("UPDATE STATISTICS t", id="no row changes"),
    pytest.param("UPDATE t SET x='\\' WHERE id=1 -- '", id="a backslash"),
    pytest.param("UPDATE t SET x=5--1 WHERE id=2", id="dashes without a blank"),
    pytest.param("UPDATE t SET x=1 # WHERE id=2", id="a hash"),
    pytest.param("UPDATE t SET x=1 /*! WHERE id=2 */", id="a comment that runs"),
    pytest.param("DELETE FROM t WHERE x='a", id="an open string"),
    pytest.param("DELETE FROM [t WHERE]", id="brackets"),
    pytest.param("SELECT $a$ ; DELETE FROM t $a$", id="dollars"),
    pytest.param("SELECT q'[it's]' ", id="a letter before a quote"),
    pytest.param("DELETE FROM t\u00a0WHERE id=1", id="an odd blank"),
    pytest.param("SELECT (1; DELETE FROM t)", id="a semicolon in brackets"),
    pytest.param("SELECT (1", id="an open bracket"),
    pytest.param("", id="empty"),
]


@pytest.mark.parametrize("sql", UNSURE)
def test_nothing_is_said_where_dialects_differ(sql: str) -> None:
    assert (statement_kinds(sql), without_condition(sql)) == ((), ())


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("UPDATE t SET x = 1", "UPDATE"),
        ("UPDATE a.b AS c SET x = 'WHERE', y = 2 RETURNING y;", "UPDATE"),
        ("DELETE FROM t -- WHERE id = 1\n", "DELETE"),
        ('DELETE FROM "my"."orders" o', "DELETE"),
        ("SELECT 1; UPDATE t SET x = 1; DELETE FROM t", "DELETE UPDATE"),
        ("DELETE FROM t WHERE id = 1", ""),
        ("UPDATE t SET x = 1 LIMIT 10", ""),
        ("UPDATE TOP (10) t SET x = 1", ""),
        ("UPDATE (SELECT * FROM t WHERE a) SET x = 1", ""),
        ("UPDATE person:kim SET x = 1", ""),
        ("DELETE FROM t USING u", ""),
        ("TRUNCATE t", ""),
    ],
)
def test_only_a_statement_without_any_limit_is_named(sql: str, found: str) -> None:
    assert " ".join(without_condition(sql)) == found


PIECES = [
    *("UPDATE t SET x = 1", "DELETE FROM t", " WHERE ", "a", "'", '"', "`", "\\", "--"),
    *("/*", "*/", "\n", "\r", " ", ";", "$", "[", "1", "N", "(", ")", "!"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_a_condition_outside_of_quotes_is_never_overlooked(sql: str) -> None:
    quiet = sql.translate(str.maketrans("", "", "'\"`-/*"))

    # Without quotes and comments a condition cannot be anything else.
    if sql == quiet and "WHERE" in sql and ";" not in sql:
        assert without_condition(sql) == ()
    # Every reported part is in the text.
    assert all(kind in sql.upper() for kind in statement_kinds(sql))


@pytest.mark.parametrize("piece", ["''", "'", "/*", "--\n", "((", "a ", "-", ";", "1"])
def test_a_long_text_is_read_in_a_moment(piece: str) -> None:
    assert len(statement_kinds(piece * 50_000)) == 0
