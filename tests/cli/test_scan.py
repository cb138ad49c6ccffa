"""The scan lists each tool of a code base that may run without a gate."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from keyturn.cli.scan import scanned
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
TOOL = """
from langchain.agents import create_agent
from langchain_core.tools import tool
from keyturn.agent import ApprovalMiddleware, guarded

@tool
def pay(amount: int) -> str:
    "Pay."
"""
MIDDLEWARE = "middleware=[ApprovalMiddleware('b')]"
GATED = f"agent = create_agent(model, [pay], {MIDDLEWARE})\n"
PYDANTIC = """
from pydantic_ai import Agent, FunctionToolset
from keyturn.connect.pydantic_ai import KeyturnApproval
"""
OPENAI = """
from agents import Agent, function_tool
from keyturn.connect import openai_agents

@function_tool(name_override="pay_now")
def pay(amount: int) -> str:
    "Pay."

agent = Agent(name="Billing", tools=[pay])
"""
MCP = """
from mcp.server.fastmcp import FastMCP
from keyturn import receipts
from keyturn.agent import require_approval

server = FastMCP("billing")
verifier = receipts.Verifier(audience="billing")

@server.tool()
def pay(amount: int) -> str:
    "Pay."
"""
CLEARED = [
    TOOL + GATED,
    TOOL + "made = guarded(pay)\n",
    TOOL.replace("@tool", "@guarded\n@tool"),
    TOOL
    + f"tools = [pay]\ntools += []\nagent = create_agent(m, tools, {MIDDLEWARE})\n",
    TOOL + "def tools():\n    return [pay]\nmade = [guarded(one) for one in tools()]\n",
    TOOL + "for one in [pay]:\n    print(one.name)\n    made.append(guarded(one))\n",
    TOOL + f"class A:\n    tools = [pay]\n    def run(self):\n"
    f"        create_agent(m, self.tools, {MIDDLEWARE})\n",
    TOOL + "agent = create_agent(llm.bind_tools([pay]), [guarded(pay)])\n",
    TOOL.replace("import ApprovalMiddleware", "import HumanInTheLoopMiddleware as H")
    + "gates = [H({}, agent='b')]\nagent = create_agent(m, [pay], middleware=gates)\n",
    PYDANTIC + "def pay(): ...\n"
    "agent = Agent('m', tools=[pay], capabilities=[KeyturnApproval('b')])\n",
    PYDANTIC + "agent = Agent('m', capabilities=[KeyturnApproval('b')])\n"
    "@agent.tool_plain\nasync def pay(): ...\n",
    PYDANTIC + "more = FunctionToolset()\n@more.tool\ndef pay(): ...\n"
    "agent = Agent('m', toolsets=[more], capabilities=[KeyturnApproval('b')])\n",
    PYDANTIC + "agent = Agent('m', capabilities=[KeyturnApproval('b')])\n"
    "@agent.toolset\ndef pay(run): ...\n",
    TOOL + "def send(): ...\ntools = [pay]\ntools.append(send)\n"
    f"agent = create_agent(m, tools, {MIDDLEWARE})\n",
    TOOL + f"create_agent(m, **{{'tools': [pay]}}, {MIDDLEWARE})\n",
    OPENAI + "gated = openai_agents.gate_tools(agent, 'b')\n",
    MCP + "    receipt = verifier.verify(meta)\n",
    MCP + "    return require_approval('pay', {'amount': amount}, run=_pay)\n",
    MCP + "    try:\n        if not verifier.verify(meta):\n            return\n"
    "    except ValueError:\n        return\n",
    MCP.replace("@server.tool()\n", "@server.tool()\n@verifier.guarded\n"),
]
LISTED = [
    # No gate, or no use that an analysis can follow.
    (TOOL, "pay"),
    (OPENAI, "pay"),
    (MCP, "pay"),
    (MCP.replace("amount: int", "check: receipts.Verifier"), "pay"),
    (TOOL + "agent = create_agent(model, [pay])\n", "pay"),
    (TOOL + "run = partial(getattr(tools, 'pay'))\n", "pay"),
    (TOOL.replace("@tool", "@wrapped_tool(1)"), "pay"),
    # A gate elsewhere, of another package, or only around another tool.
    (TOOL + GATED + "other = create_agent(model, [pay])\n", "pay"),
    (TOOL + GATED + "def direct():\n    return pay.invoke({'amount': 1})\n", "pay"),
    (TOOL + "made = guarded(pay)\ncreate_agent(m, tools := [pay])\n", "pay"),
    (TOOL + "def other(): ...\nmade = [guarded(other), pay]\n", "pay"),
    (TOOL.replace("keyturn", "others") + GATED, "pay"),
    (TOOL + f"start(create_agent(m, [], {MIDDLEWARE}), create_agent(m, [pay]))", "pay"),
    (TOOL.replace("from keyturn", "from .keyturn") + GATED, "pay"),
    # A gate that may be missing.
    (MCP + "    if meta:\n        verifier.verify(meta)\n", "pay"),
    (MCP + "    return 1 if amount < 9 else require_approval('pay', {})\n", "pay"),
    (MCP + "    try:\n        _pay()\n    except E:\n        verifier.verify(m)\n",
     "pay"),
    (TOOL.replace("@tool", "guarded = set\n@tool") + "made = guarded(pay)\n", "pay"),
    (TOOL.replace("@tool", "try:\n    from others import guarded\nexcept:\n    pass\n"
     "@tool") + "guarded(pay)\n", "pay"),
    (TOOL + "def start(gates=()):\n    create_agent(m, [pay], middleware=gates)\n"
     "gates = [ApprovalMiddleware('b')]\nstart(gates)\n", "pay"),
    (TOOL + "gates = [ApprovalMiddleware('b')]\ngates = []\n"
     "agent = create_agent(m, [pay], middleware=gates)\n", "pay"),
    (PYDANTIC + "agent = Agent('m', capabilities=[KeyturnApproval('b')])\n"
     "agent = Agent('m')\n@agent.tool\nasync def pay(): ...\n", "pay"),
    (OPENAI + "gated = openai_agents.gate_tools(agent, 'b')\nrun(agent)\n", "pay"),
    # Tools without a decorator.
    (TOOL + GATED + "def send(): ...\ncreate_agent(m, [send])\n", "send"),
    (TOOL + GATED + "def send(): ...\ntools = []\ntools.append(send)\n"
     "create_agent(m, tools)\n", "send"),
    (TOOL + GATED + "def send(): ...\nother.tools = []\nother.tools += [send]\n",
     "send"),
    (TOOL + GATED + "def send(): ...\nother.tools.insert(0, send)\n", "send"),
    (TOOL + GATED + "def send(): ...\nAgent('m', **{'tools': [send]})\n", "send"),
    (TOOL.replace("@tool", "action = tool\n@action"), "pay"),
    (MCP.replace("@server.tool", "add = partial(server.tool)\n@add"), "pay"),
    (PYDANTIC + "agent = Agent('m')\n@agent.toolset\ndef more(run): ...\n", "more"),
    (TOOL + GATED + "class Send(BaseTool): ...\n", "Send"),
    (TOOL + GATED + "send = StructuredTool.from_function(f)\n",
     "send = StructuredTool.from_function(f)"),
    (TOOL + GATED + "async def main():\n    tools = await client.get_tools()\n"
     "    create_agent(m, tools)\n", "create_agent(m, tools)"),
    (TOOL + GATED + "def build(tools):\n    return create_agent(m, tools=tools)\n",
     "return create_agent(m, tools=tools)"),
    (TOOL + GATED + "client.create(tools=[{'type': 'function'}])\n",
     "client.create(tools=[{'type': 'function'}])"),
    (TOOL + GATED + "def load():\n    return external()\ncreate_agent(m, load())\n",
     "create_agent(m, load())"),
]  # fmt: skip


def names(folder: Path) -> list[str]:
    return [one["tool"] for one in scanned(folder)["tools"]]


@pytest.mark.parametrize("code", CLEARED)
def test_a_tool_is_cleared_if_gates_have_all_uses(tmp_path: Path, code: str) -> None:
    (tmp_path / "app.py").write_text(code)
    found = scanned(tmp_path)
    assert found["tools"] == []
    assert found["cleared"] >= 1


@pytest.mark.parametrize(("code", "tool"), LISTED)
def test_a_tool_without_a_gate_is_listed(tmp_path: Path, code: str, tool: str) -> None:
    (tmp_path / "app.py").write_text(code)
    assert names(tmp_path) == [tool]


@pytest.mark.parametrize(
    "use",
    [
        "from tools import pay as refund\n{}(refund)\n",
        "import package.tools\n{}(package.tools.pay)\n",
        "from package import refund\n{}(refund)\n",
        "from .tools import *\n{}(pay)\n",
    ],
)
def test_uses_are_followed_through_imports(tmp_path: Path, use: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "tools.py").write_text(TOOL)
    (package / "__init__.py").write_text("from .tools import pay as refund\n")
    gated = "from keyturn.agent import guarded\n" + use.format("made = guarded")
    (tmp_path / "gated.py").write_text(gated)
    assert names(tmp_path) == []

    (tmp_path / "open.py").write_text(use.format("run"))
    [found] = scanned(tmp_path)["tools"]
    assert found["use"] == f"{tmp_path / 'open.py'}:2"


def test_files_that_cannot_be_read_are_listed(shell: Shell) -> None:
    for name in ("tests", ".hidden", "env", "src"):
        (shell.folder / name).mkdir()
        shell.write(TOOL, f"{name}/app.py")
    (shell.folder / "env" / "pyvenv.cfg").touch()
    (shell.folder / "src" / "loop").symlink_to(shell.folder)
    shell.write(TOOL, "app.txt")
    shell.write("{}", "app.ipynb")
    latin = f"# -*- coding: latin-1 -*-\n# \xe9\n{TOOL.replace('pay', 'send')}"
    (shell.folder / "latin.py").write_bytes(latin.encode("latin-1"))
    odd = {
        "broken.py": b"def (",
        "deep.py": b"-" * 100_000 + b"1",
        "huge.py": b"#" * 2_000_001,
        "nul.py": b"\0",
        "utf16.py": TOOL.encode("utf-16"),
    }
    for name, body in odd.items():
        (shell.folder / name).write_bytes(body)
    (shell.folder / "gone.py").symlink_to("nothing.py")
    os.mkfifo(shell.folder / "pipe.py")

    code, out, _ = shell("scan", ".", "--json")
    found = json.loads(out)
    assert code == 1
    assert {one["tool"] for one in found["tools"]} == {"pay", "send"}
    assert {*found["unread"]} == {*odd, "gone.py", "pipe.py"}
    assert found["skipped"] == ["tests", "app.ipynb"]


def test_a_linked_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "app.py").write_text(TOOL)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app").symlink_to(tmp_path / "code")
    assert names(tmp_path / "src") == ["pay"]


def test_the_command_names_the_place_and_the_next_step(shell: Shell) -> None:
    shell.write(TOOL + "agent = create_agent(model, [pay])\n", "app.py")
    code, out, _ = shell("scan", ".")
    assert code == 1
    assert "app.py:7 pay, used at app.py:9: wrap it in keyturn.agent.guarded" in out

    shell.write(TOOL + GATED, "app.py")
    assert "gates: 1 of 1 tools" in shell.said("scan", "app.py")


def test_a_file_that_cannot_be_parsed_fails_the_command(shell: Shell) -> None:
    shell.write("def (", "app.py")
    code, out, _ = shell("scan", ".")
    assert (code, "app.py cannot be read" in out) == (1, True)


def test_a_path_without_code_is_refused(shell: Shell) -> None:
    (shell.folder / "empty").mkdir()
    for path in ("empty", "."):
        assert "has no Python file" in shell.refused("scan", path)
    assert "There is no 'none'" in shell.refused("scan", "none")


def test_only_the_stock_agent_of_the_examples_has_no_gate_in_its_code() -> None:
    assert names(ROOT / "examples") == ["cancel_order"]
