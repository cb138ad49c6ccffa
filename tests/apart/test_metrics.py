"""Gateway and bot show the metrics of the board and the alerts, each at its address."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.apart.house import LONG_S, open_house

GRAFANA = Path(__file__).parents[2] / "docs/grafana"


def wanted() -> set[str]:
    """Return the names in the expressions of the board and the alert rules."""
    board = json.loads((GRAFANA / "keyturn.json").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((GRAFANA / "alerts.yml").read_text(encoding="utf-8"))
    shown = [target["expr"] for one in board["panels"] for target in one["targets"]]
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    return set(re.findall(r"keyturn_\w+", " ".join([*shown, *rules])))


async def scraped(url: str) -> tuple[set[str], dict[str, float]]:
    """Return the names that a process announces, and the sums of its samples."""
    async with httpx.AsyncClient(timeout=LONG_S) as client:
        for path in ("/healthz", "/readyz"):
            assert (await client.get(f"{url}{path}")).status_code == 200, path
        text = (await client.get(f"{url}/metrics")).text
    names, sums = set[str](), dict[str, float]()
    for family in text_string_to_metric_families(text):
        parts = {"histogram": ["_bucket", "_sum", "_count"], "counter": ["_total"]}
        names |= {f"{family.name}{end}" for end in parts.get(family.type, [""])}
        for one in family.samples:
            sums[one.name] = sums.get(one.name, 0) + one.value
    return names, sums


async def test_every_process_counts_its_own_work(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        await house.runs_once("t1")
        gateway, of_gateway = await scraped(house.urls["gateway"])
        bot, of_bot = await scraped(house.urls["bot"])

    assert wanted() - gateway == set()
    assert wanted() - bot == set()
    assert of_gateway["keyturn_decision_to_run_seconds_count"] == 1
    assert of_gateway["keyturn_api_request_seconds_count"] > 2
    assert of_bot["keyturn_slack_api_calls_total"] > 2
    for found in (of_gateway, of_bot):
        assert found["keyturn_build_info"] == 1
        assert found["keyturn_calls_total"] == 1
        assert found["keyturn_jobs_waiting"] == 0
