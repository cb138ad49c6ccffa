"""Validation rules that compare several fields of one object.

Each rule receives an object whose fields already have valid shapes.
"""

from collections.abc import Iterable, Mapping, Sequence

from keyturn.sandbox.blockkit.formats import to_decimal
from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.problem import Violation, Violations, step
from keyturn.sandbox.blockkit.shape import Node, Rule


def at_least_one_of(*keys: str) -> Rule:
    """Require one or more of these keys."""

    def rule(node: Node) -> Violations:
        if not any(key in node for key in keys):
            yield Violation("", f"must have at least one of {', '.join(keys)}")

    return rule


def exactly_one_of(*keys: str) -> Rule:
    """Require exactly one of these keys."""

    def rule(node: Node) -> Violations:
        present = [key for key in keys if key in node]
        if len(present) != 1:
            has = " and ".join(present) or "none"
            yield Violation(
                "", f"must have exactly one of {', '.join(keys)}; has {has}"
            )

    return rule


def ordered(low: str, high: str) -> Rule:
    """Refuse a minimum above its maximum; integers or numbers in strings."""

    def rule(node: Node) -> Violations:
        if low in node and high in node:
            least, most = to_decimal(str(node[low])), to_decimal(str(node[high]))
            if least > most:
                yield Violation(step("", low), f"{low} {least} is above {high} {most}")

    return rule


def within(key: str, low: str, high: str) -> Rule:
    """Refuse a prefilled number outside of its bounds."""

    def rule(node: Node) -> Violations:
        if key not in node:
            return
        value = to_decimal(str(node[key]))
        if low in node and value < to_decimal(str(node[low])):
            yield Violation(step("", key), f"is below {low}")
        if high in node and value > to_decimal(str(node[high])):
            yield Violation(step("", key), f"is above {high}")

    return rule


def whole_unless(flag: str, *keys: str) -> Rule:
    """Refuse decimals unless `flag` allows them."""

    def rule(node: Node) -> Violations:
        if node.get(flag) is True:
            return
        for key in keys:
            if key in node and "." in str(node[key]):
                yield Violation(step("", key), f"must be whole, {flag} is false")

    return rule


def prefill_fits(node: Node) -> Violations:
    """Refuse a prefilled text that the input itself would not accept."""
    text, most = node.get("initial_value"), node.get("max_length")
    if isinstance(text, str) and isinstance(most, int) and len(text) > most:
        yield Violation(
            "/initial_value", f"has {len(text)} characters, max_length is {most}"
        )


def chosen_are_offered(node: Node) -> Violations:
    """Refuse an initial option that does not equal one of the options."""
    offered = _offered(node)
    if "initial_option" in node and node["initial_option"] not in offered:
        yield Violation("/initial_option", "is not among the options")
    for index, chosen in enumerate(items_of(node, "initial_options")):
        if chosen not in offered:
            yield Violation(f"/initial_options/{index}", "is not among the options")


def values_are_unique(node: Node) -> Violations:
    """Refuse two options with one value: the choice would be ambiguous."""
    seen: set[ReadOnlyJSON] = set()
    for option in _offered(node):
        value = option.get("value")
        if isinstance(value, str) and value in seen:
            yield Violation("", "has two options with the same value")
            return
        seen.add(value if isinstance(value, str) else None)


def not_more_than_allowed(initial: str) -> Rule:
    """Refuse more prefilled choices than `max_selected_items` allows."""

    def rule(node: Node) -> Violations:
        most, chosen = node.get("max_selected_items"), items_of(node, initial)
        if isinstance(most, int) and len(chosen) > most:
            yield Violation(
                step("", initial),
                f"has {len(chosen)} items, max_selected_items is {most}",
            )

    return rule


def action_ids_are_unique(node: Node) -> Violations:
    """Refuse two elements of one block with the same action_id."""
    for index, action_id in duplicates(items_of(node, "elements"), "action_id"):
        yield Violation(
            f"/elements/{index}/action_id",
            f"{action_id!r} is already used in this block",
        )


def duplicates(items: Iterable[ReadOnlyJSON], key: str) -> Iterable[tuple[int, str]]:
    """Yield index and id of each item that repeats an earlier item's id."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        value = item.get(key) if isinstance(item, Mapping) else None
        if isinstance(value, str):
            if value in seen:
                yield index, value
            seen.add(value)


def items_of(node: Node, key: str) -> Sequence[ReadOnlyJSON]:
    """Return the items of a list; empty if it is not a list."""
    value = node.get(key)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _offered(node: Node) -> list[Node]:
    groups = [
        each for each in items_of(node, "option_groups") if isinstance(each, Mapping)
    ]
    return [
        option
        for holder in (node, *groups)
        for option in items_of(holder, "options")
        if isinstance(option, Mapping)
    ]
