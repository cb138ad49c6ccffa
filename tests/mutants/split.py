"""Ways to break a tenant that is split by agent."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TENANT = "tests/service/test_split_tenant.py"
FREEZES = "tests/service/test_split_freezes.py"
POLICY = "tests/policy/test_split_checks.py"
SETTING = "tests/store/test_split_tenants.py"
AWAY = "tests/service/test_away_parts.py"
CLOCKS = "tests/clock/test_clocks_of_masters.py"
START = "tests/resume/test_failover_at_start.py"

SPLIT_TABLE = (
    Mutant(
        "the runs of an agent are where its name says",
        "gateway/store/store.py",
        "return keys_of_shard(shard_of_agent(tenant, agent, self.shards))",
        "return self.keys_of_tenant(tenant)",
        TENANT,
    ),
    Mutant(
        "what a tenant has is in every shard",
        "gateway/store/store.py",
        "return (own, *others)",
        "return (own,)",
        TENANT,
    ),
    Mutant(
        "a merged queue is in order",
        "gateway/service/merging.py",
        "(key(row), number, row)",
        "(0, number, row)",
        TENANT,
    ),
    Mutant(
        "a merged queue ends with its last row",
        "gateway/service/merging.py",
        "            yield row\n            await read(number)\n",
        "            yield row\n",
        TENANT,
    ),
    Mutant(
        "an edited message asks one agent",
        "gateway/service/agent_requests.py",
        "if len(self._parts) > 1 and",
        "if False and",
        TENANT,
    ),
    Mutant(
        "an agent of another name does not ask inside a run",
        "gateway/service/turn_validation.py",
        "if agent != outermost:",
        "if False:",
        TENANT,
    ),
    Mutant(
        "a freeze is acknowledged when every shard has it",
        "gateway/service/split_freezes.py",
        "            if missing:\n",
        "            if False:\n",
        FREEZES,
    ),
    Mutant(
        "of two changes of a freeze the later one counts",
        "gateway/store/lua/freeze_part.lua",
        "if before > at or loses then",
        "if loses then",
        FREEZES,
    ),
    Mutant(
        "a freeze is told of once",
        "gateway/store/lua/freeze_part.lua",
        "if event[1] > before then",
        "if true then",
        FREEZES,
    ),
    Mutant(
        "a freeze is told of by a shard that was away",
        "gateway/service/split_freezes.py",
        "before = () if is_told else newest.events",
        "before = ()",
        FREEZES,
    ),
    Mutant(
        "a pause that begins after its end was said stays",
        "gateway/store/lua/freeze_part.lua",
        "(cjson.decode(pause).at_ms or 0) <= at",
        "true",
        FREEZES,
    ),
    Mutant(
        "gateways make a freeze complete",
        "gateway/running.py",
        "if store.is_split(tenant):",
        "if False:",
        FREEZES,
    ),
    Mutant(
        "a total over agents is refused",
        "gateway/policy/split_checks.py",
        "if window.by != PER_AGENT:",
        "if False:",
        POLICY,
    ),
    Mutant(
        "standing approvals are refused",
        "gateway/policy/split_checks.py",
        "if rule.allow_similar is not None:",
        "if False:",
        POLICY,
    ),
    Mutant(
        "precedents are refused",
        "gateway/policy/split_checks.py",
        "if rule.same_by:",
        "if False:",
        POLICY,
    ),
    Mutant(
        "rules that read precedents are refused",
        "gateway/policy/split_checks.py",
        "            if read:\n",
        "            if False:\n",
        POLICY,
    ),
    Mutant(
        "the policy of the settings is checked for a tenant that is split",
        "gateway/config.py",
        "PolicySource(path=source.parent / policy, is_split=is_split)",
        "PolicySource(path=source.parent / policy)",
        SETTING,
    ),
    Mutant(
        "a policy that a program gives is checked, too",
        "gateway/policy_file.py",
        "if is_split and (problem :=",
        "if False and (problem :=",
        SETTING,
    ),
    Mutant(
        "two processes with two settings do not both run",
        "gateway/store/split_tenants.py",
        "if kept != mine:",
        "if False:",
        SETTING,
    ),
    Mutant(
        "a tenant with calls of before the setting is not split",
        "gateway/store/split_tenants.py",
        "first = _WHOLE if is_used else mine",
        "first = mine",
        SETTING,
    ),
    Mutant(
        "one shard splits no tenant",
        "gateway/store/split_tenants.py",
        "if shards == 1:",
        "if False:",
        SETTING,
    ),
    Mutant(
        "a list names the shards that it leaves out",
        "gateway/service/away_parts.py",
        "            self.shards.add(keys.shard)\n",
        "",
        AWAY,
    ),
    Mutant(
        "a shard that hangs is not waited for",
        "gateway/service/away_parts.py",
        "async with asyncio.timeout(ANSWERS_WITHIN_S):",
        "async with asyncio.timeout(None):",
        AWAY,
    ),
    Mutant(
        "the tenant's own shard is never left out",
        "gateway/service/away_parts.py",
        "for keys in parts[1:]",
        "for keys in parts",
        AWAY,
    ),
    Mutant(
        "an incomplete freeze is listed",
        "gateway/service/split_freezes.py",
        "if (name in part.frozen) != is_set",
        "if False",
        AWAY,
    ),
    Mutant(
        "a shard that hangs keeps a freeze from no other",
        "gateway/service/split_freezes.py",
        "async with asyncio.timeout(within_s):",
        "async with asyncio.timeout(None):",
        AWAY,
    ),
    Mutant(
        "each shard is asked for its own time",
        "gateway/store/connection.py",
        '["EXISTS", near], ["TIME"]',
        '["EXISTS", ""], ["TIME"]',
        CLOCKS,
    ),
    Mutant(
        "a failover while a process registers does not end its start",
        "gateway/service/process_check.py",
        "await until_usable(registration.enter, store.conn.url)",
        "await registration.enter()",
        START,
    ),
)
