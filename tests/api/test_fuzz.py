"""The gateway answers every request, and never with an internal error."""

from __future__ import annotations

import json
import zlib
from importlib import import_module
from typing import Any, cast

from hypothesis import HealthCheck, Phase, settings

from keyturn.gateway.api.operations import document
from tests.api.api_stack import ApiStack
from tests.api.issuer import Issuer
from tests.levels import size

# Its types are partly unknown.
schemathesis: Any = import_module("schemathesis")
checks: Any = import_module("schemathesis.specs.openapi.checks")
not_a_server_error: Any = import_module("schemathesis.checks").not_a_server_error

EVERY: Any = list(HealthCheck)
DOCUMENT: dict[str, Any] = json.loads(document())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
EACH = size(deep=190, short=15)
"""Requests to each operation."""


@SCHEMA.parametrize()  # type: ignore[untyped-decorator] # its module is Any, above
@settings(
    max_examples=EACH,
    deadline=None,
    derandomize=False,
    suppress_health_check=EVERY,
    phases=[Phase.explicit, Phase.generate],
)
def test_what_the_document_says_holds(apart: ApiStack, case: Any) -> None:
    # No request waits for people here.
    _drop(case.body, "wait_s")
    _drop(case.query, "wait")
    _drop(case.headers, "Accept")
    # Names that belong together, in most of their places.
    which = _chance((case.body, case.path_parameters), len(apart.names["id"]))
    names = {name: ones[which % len(ones)] for name, ones in apart.names.items()}
    case.body = _known(case.body, names)
    case.path_parameters = _known(case.path_parameters, names)
    is_person = case.operation.path.endswith("/decide") and which
    key = Issuer().token() if is_person else apart.key(agents=["*"])
    headers = {"Authorization": f"Bearer {key}"}
    response = case.call(base_url=apart.url, headers=headers, timeout=30)

    case.validate_response(
        response,
        checks=[
            not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
        ],
    )


def _known(part: Any, names: dict[str, str], name: str = "") -> Any:
    """Put what exists in the place of most drawn names, so that it is found."""
    if isinstance(part, dict):
        members = cast("dict[str, Any]", part)
        return {key: _known(one, names, key) for key, one in members.items()}
    if isinstance(part, list | tuple):
        return [_known(one, names, name) for one in cast("list[Any]", part)]
    is_kept = name not in names or not isinstance(part, str) or not _chance(part, 7)
    return part if is_kept else names[name]


def _chance(of: object, sides: int) -> int:
    """Return a number that follows from the drawn values, so that it is drawn again."""
    return zlib.crc32(repr(of).encode("utf-8", "replace")) % sides


def _drop(part: Any, name: str) -> None:
    if hasattr(part, "pop") and not isinstance(part, list):
        part.pop(name, None)
