"""List the tools of a code base that can run without a gate, without running the code.

A tool is cleared only if each of its uses ends in a gate of Keyturn. The analysis
follows a use through variables, loops, returned values and imports, and lists every
tool whose uses it cannot follow: a wrongly listed tool costs a look, and a missed tool
runs without approval. For the same reason names are compared coarsely: a file has one
scope, and an import of a name, or an attribute of that name, is a use of it in every
file that defines it.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from keyturn.cli import console
from keyturn.cli.console import argument
from keyturn.gateway.errors import SettingsError

_AGENT_GATES = frozenset(
    {"ApprovalMiddleware", "HumanInTheLoopMiddleware", "KeyturnApproval"}
)
_WRAPPERS = frozenset({"guarded", "gated_subagents", "gate_tools"})
_CHECKS = frozenset(
    {"require_approval", "arequire_approval", "requires_receipt", "verify_receipt"}
)
_RECEIPTS = frozenset({"Verifier"})
_GATE_KEYWORDS = {"middleware", "capabilities"}
_TOOL_KEYWORDS = {"tools", "toolsets", "mcp_servers"}
_TOOL_POSITIONS = {
    **dict.fromkeys(["create_agent", "create_react_agent", "create_deep_agent"], 1),
    **dict.fromkeys(["ToolNode", "bind_tools", "add_tool", "add_tools"], 0),
}
_DECORATORS = ("tool", "tool_plain", "toolset")
_MAKERS = {"tool", "function_tool", "call_tool", "as_tool", "from_function"}
_LIST_METHODS = {"append", "extend", "insert", "add", "update"}
_DICT_METHODS = {"copy", "get", "items", "values"}
_DESCRIBES = {"name", "description", "args_schema", *_LIST_METHODS}
"""Attributes of a tool, or of a list of tools, that run no tool."""
_NEXT = {
    "langchain": "wrap it in keyturn.agent.guarded, and give its agent the middleware",
    "pydantic_ai": "pass capabilities=[KeyturnApproval(…)] to each agent that has it",
    "agents": "wrap each agent that has it in keyturn.connect.openai_agents.gate_tools",
    "mcp": "put 'keyturn mcp' before the server, or verify receipts in the tool",
}
_ANY = "see 'Connect another agent' in the README"
_TESTS = {"tests", "test"}
_SKIPPED = {"node_modules", "site-packages", "__pycache__"}
_LARGEST = 2_000_000
"""Bytes of the largest file that is parsed."""
_LONGEST = 60
"""Characters of a line that is listed."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = _Function | ast.ClassDef
_Place = tuple["_File", ast.AST]
_Name = tuple["_File | None", str]
"""A name in a file; without the file, a name in a class or object of any file."""


class _End(Enum):
    GATED = "a gate of Keyturn"
    HARMLESS = "code that runs no tool"
    UNGATED = "any other code"


_Outcome = _End | list[_Name] | None
"""The end of a use, the names that it goes to, or None if its parent decides."""


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Bytes, so that Python finds the encoding.
        self.source = path.read_bytes()
        self.nodes = [*ast.walk(ast.parse(self.source))]
        self.parents = {
            child: node for node in self.nodes for child in ast.iter_child_nodes(node)
        }
        self.imports: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                of = ""
                if isinstance(node, ast.ImportFrom):
                    # With its dots: .keyturn is another module than keyturn.
                    of = f"{'.' * node.level}{node.module or ''}."
                for one in node.names:
                    name = one.asname or one.name.partition(".")[0]
                    full = of + (one.name if of or one.asname else name)
                    # A name with several origins may be no gate.
                    is_new = self.imports.get(name, full) == full
                    self.imports[name] = full if is_new else name
        for node in self.nodes:
            for name in {one[1] for one in self.assigned(node)[1]} & {*self.imports}:
                self.imports[name] = name

    def dotted(self, node: ast.AST) -> str:
        """Return the name of an expression as imported; "" if it is no name."""
        if isinstance(node, ast.Attribute) and (of := self.dotted(node.value)):
            return f"{of}.{node.attr}"
        return self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def is_from(self, node: ast.AST, names: frozenset[str]) -> bool:
        """Return True if an expression is one of these names of Keyturn."""
        parts = self.dotted(node).split(".")
        return parts[0] == "keyturn" and parts[-1] in names

    def is_decorator(self, node: ast.AST) -> bool:
        """Return True if a node is a decorator, or the name of one with arguments."""
        parent = self.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            node, parent = parent, self.parents[parent]
        return node in getattr(parent, "decorator_list", ())

    def may_skip(self, node: ast.AST, within: ast.AST) -> bool:
        """Return True if a branch or loop in a definition has a node."""
        while node is not within:
            child, node = node, self.parents[node]
            # The condition itself always runs, and so does what a loop goes through.
            first = getattr(node, "test", getattr(node, "iter", child))
            if first is not child or isinstance(
                node, ast.ExceptHandler | ast.match_case
            ):
                return True
        return False

    def is_imported(self, node: ast.AST) -> bool:
        """Return True if an expression starts with an imported name."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.imports

    def last(self, node: ast.AST) -> str:
        """Return the last name of an expression, of a call that of the function."""
        while isinstance(node, ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        name = node.attr if isinstance(node, ast.Attribute) else ""
        return name or self.dotted(node).rpartition(".")[2]

    def stored(self, target: ast.AST | None) -> list[_Name]:
        """Return the variables to which a target assigns."""
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [name for one in parts for name in self.stored(one)]
            case ast.Starred(value=inner) | ast.Subscript(value=inner):
                return self.stored(inner)
            case ast.Attribute(attr=name):
                return [(None, name)]
            case ast.Name(id=name):
                is_in_class = isinstance(
                    self.parents[self.parents[target]], ast.ClassDef
                )
                return [(None if is_in_class else self, name)]
            case _:
                return []

    def assigned(self, node: ast.AST) -> tuple[ast.AST | None, list[_Name]]:
        """Return the value that a node assigns or returns, and its new names."""
        match node:
            case ast.Assign(value=value, targets=targets):
                return value, [it for one in targets for it in self.stored(one)]
            case (
                ast.AnnAssign(value=value, target=target)
                | ast.AugAssign(value=value, target=target)
                | ast.NamedExpr(value=value, target=target)
                | ast.For(iter=value, target=target)
                | ast.AsyncFor(iter=value, target=target)
                | ast.comprehension(iter=value, target=target)
                | ast.withitem(context_expr=value, optional_vars=target)
            ):
                return value, self.stored(target)
            case ast.Return(value=value) | ast.Yield(value=value):
                while not isinstance(node, _Function | ast.Lambda | ast.Module):
                    node = self.parents[node]
                is_function = isinstance(node, _Function)
                return value, self.assigned(node)[1] if is_function else []
            case (
                ast.arg() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef()
            ):
                is_method = isinstance(self.parents[node], ast.ClassDef)
                name = getattr(node, "name", "") or getattr(node, "arg", "")
                return node, [(None if is_method else self, name)]
            case _:
                return None, []


class _Analysis:
    """Finds the tools of files, and follows their uses to gates."""

    def __init__(self, files: list[_File]) -> None:
        self.tools: dict[ast.AST, tuple[_File, ast.expr | None]] = {}
        """Definitions, and expressions that make a tool, with agent or server."""
        self.values: dict[_Name, list[_Place]] = defaultdict(list)
        self.added: dict[_Name, list[_Place]] = defaultdict(list)
        """Values that a method such as `append` adds, or that a key has."""
        self.uses: dict[_Name, list[_Place]] = defaultdict(list)
        self.gates: dict[tuple[ast.AST, frozenset[str]], bool] = {}
        self.shared: dict[str, set[_Name]] = defaultdict(set)
        """The names that an import of a name may mean."""
        nodes = [(file, node) for file in files for node in file.nodes]
        for file, node in nodes:
            value, names = file.assigned(node)
            returns = isinstance(node, ast.Return | ast.Yield)
            for name in names if value and not returns else ():
                self.values[name].append((file, value or node))
                self.shared[name[1]] |= {name} if name[0] else set()
        for file in files:
            for alias, full in file.imports.items():
                self.shared[alias] |= self.shared[_last_part(full)]
        for file, node in nodes:
            is_read = isinstance(getattr(node, "ctx", None), ast.Load)
            for name in self._names(file, node) if is_read else ():
                self.uses[name].append((file, node))
            self._add(file, node)
        for file, node in nodes:
            self._find(file, node)
        self._find_stored()

    def ungated(self) -> Iterator[dict[str, Any]]:
        """Return the tools that may run without a gate, each with such a use."""
        for node, (file, owner) in self.tools.items():
            place = self._ungated_use(file, node, owner)
            if place is None:
                continue
            line = getattr(node, "lineno", 1)
            text = file.source.splitlines()[line - 1].decode(errors="replace")
            packages = {one.partition(".")[0] for one in file.imports.values()}
            yield {
                "file": str(file.path),
                "line": line,
                "tool": getattr(node, "name", "") or text.strip()[:_LONGEST],
                "use": f"{place[0].path}:{getattr(place[1], 'lineno', line)}",
                "remedy": next((_NEXT[one] for one in _NEXT if one in packages), _ANY),
            }

    def _find(self, file: _File, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef):
            if any(file.last(one).endswith("Tool") for one in node.bases):
                self.tools[node] = (file, None)
        elif isinstance(node, _Function):
            for one in node.decorator_list:
                if self._makes_tool(file, one):
                    made = one.func if isinstance(one, ast.Call) else one
                    owner = made.value if isinstance(made, ast.Attribute) else None
                    is_module = owner and file.is_imported(owner)
                    self.tools[node] = (file, None if is_module else owner)
        elif isinstance(node, ast.Call):
            self._find_given(file, node)

    def _add(self, file: _File, node: ast.AST) -> None:
        match node:
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=args):
                for to in self._names(file, of) if name in _LIST_METHODS else ():
                    self.added[to] += [(file, it) for it in args]
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in _TOOL_KEYWORDS:
                        self.added[None, str(key.value)].append((file, value))
            case _:
                pass

    def _find_stored(self) -> None:
        """Find the functions in attributes and keys with the name of a tool list."""
        for name in _TOOL_KEYWORDS:
            for file, node in [*self.values[None, name], *self.added[None, name]]:
                for at, made in self._elements(file, node):
                    # Only functions in the list: a method with its name is no tool.
                    if isinstance(made, _Function) and made is not node:
                        self.tools.setdefault(made, (at, None))

    def _makes_tool(self, file: _File, decorator: ast.expr) -> bool:
        """Return True if a decorator makes a tool, also under another name."""
        name = decorator.func if isinstance(decorator, ast.Call) else decorator
        parts: list[_Place] = [(file, decorator)]
        for at, value in self._values(file, name):
            if not isinstance(value, _Definition):
                parts += [(at, one) for one in ast.walk(value)]
        return any(at.last(one).lower().endswith(_DECORATORS) for at, one in parts)

    def _find_given(self, file: _File, call: ast.Call) -> None:
        """Find the tool that a call makes, and the tools that it gets."""
        last = file.last(call)
        is_made = last in _MAKERS or last.endswith("Tool")
        found: list[_Place] = []
        if is_made and not file.is_decorator(call):
            found += self._values(file, call.func) or [(file, call)]
        position = _TOOL_POSITIONS.get(last, len(call.args))
        given = call.args[position : position + 1]
        given += [it.value for it in call.keywords if it.arg in _TOOL_KEYWORDS]
        for one in given:
            found += self._elements(file, one)
        for at, made in found:
            self.tools.setdefault(made, (at, None))

    def _elements(self, file: _File, node: ast.AST) -> Iterator[_Place]:
        """Return the definitions in a list of tools, and the list if it has others."""
        left, seen = [(file, node)], set[ast.AST]()
        while left:
            at, one = left.pop()
            if one in seen or (isinstance(one, ast.Call) and self._clears(at, one)):
                continue
            seen.add(one)
            parts = _parts(one)
            if isinstance(one, _Definition):
                yield at, one
            elif parts is not None:
                left += [(at, it) for it in parts]
            elif isinstance(one, ast.Call):
                values = self._values(at, one.func)
                left += [(by, it) for by, value in values for it in _made(value)]
                yield from [] if values else [(file, node)]
            else:
                values = self._values(at, one)
                values += [it for to in self._names(at, one) for it in self.added[to]]
                left += values
                yield from [] if values else [(file, node)]

    def _ungated_use(
        self, file: _File, node: ast.AST, owner: ast.expr | None
    ) -> _Place | None:
        """Return a place where a tool may run without a gate; None if there is none."""
        is_cleared, seen = False, set[_Name]()
        if isinstance(node, _Definition):
            if self._checks_itself(file, node):
                return None
            makers = self._values(file, owner) if owner else []
            is_cleared = bool(makers) and all(
                isinstance(it, ast.Call) and self._clears(at, it) for at, it in makers
            )
            names = [it for it in file.assigned(node)[1] if self.uses[it]]
            names += self._names(file, owner) if owner and not is_cleared else []
            outcome: _Outcome = names
        else:
            outcome = self._after(file, node)
        left: list[tuple[_Outcome, _Place]] = [(outcome, (file, node))]
        while left:
            outcome, place = left.pop()
            if outcome is _End.UNGATED:
                return place
            is_cleared |= outcome is _End.GATED
            for name in outcome if isinstance(outcome, list) else ():
                if name in seen:
                    continue
                seen.add(name)
                # Programs elsewhere may import a name that is not used here.
                if not self.uses[name]:
                    return place
                left += [(self._after(*use), use) for use in self.uses[name]]
        return None if is_cleared else (file, node)

    def _checks_itself(self, file: _File, node: _Definition) -> bool:
        """Return True if a definition is guarded, or always asks or verifies."""
        made = [getattr(one, "func", one) for one in node.decorator_list]
        walked = (one for one in ast.walk(node) if isinstance(one, ast.Call))
        called = [one.func for one in walked if not file.may_skip(one, node)]
        return any(self._is_wrapper(file, one) for one in made) or any(
            file.is_from(one, _CHECKS)
            or (
                isinstance(one, ast.Attribute)
                and one.attr == "verify"
                and self._is_gate(file, one.value, _RECEIPTS)
            )
            for one in called
        )

    def _after(self, file: _File, node: ast.AST) -> _Outcome:
        """Return where the value of an expression goes."""
        outcome: _Outcome = None
        while outcome is None:
            parent = file.parents[node]
            outcome = self._step(file, parent, node)
            node = parent
        return outcome

    def _step(self, file: _File, parent: ast.AST, child: ast.AST) -> _Outcome:
        value, names = file.assigned(parent)
        # A walrus has two uses: its name, and what is around it.
        if value is child and not isinstance(parent, ast.NamedExpr):
            return names or _End.UNGATED
        outcome: _Outcome = None
        match parent:
            case ast.Call():
                outcome = self._into_call(file, parent, child)
            case ast.Attribute(attr=name):
                is_harmless = name in _DESCRIBES or file.is_decorator(parent)
                outcome = _End.HARMLESS if is_harmless else _End.UNGATED
                outcome = None if name in _DICT_METHODS else outcome
            case ast.ClassDef(bases=bases) if child in bases:
                outcome = names
            case ast.Compare() | ast.arg():
                outcome = _End.HARMLESS
            case ast.stmt() | ast.comprehension() | ast.arguments() | ast.NamedExpr():
                types = (getattr(parent, it, None) for it in ("annotation", "returns"))
                is_harmless = child in types or file.is_decorator(child)
                outcome = _End.HARMLESS if is_harmless else _End.UNGATED
            case _:
                pass
        return outcome

    def _into_call(self, file: _File, call: ast.Call, child: ast.AST) -> _Outcome:
        if self._clears(file, call):
            return _End.GATED
        last = file.last(call)
        if child is call.func:
            called = [it for _, it in self._values(file, child)]
            # A class makes a tool, and a function that is no tool may return one.
            is_run = any(
                isinstance(it, _Function) and it in self.tools for it in called
            )
            return _End.UNGATED if is_run else None
        if last in _LIST_METHODS and isinstance(call.func, ast.Attribute):
            return self._names(file, call.func.value) or _End.UNGATED
        return _End.HARMLESS if last in {"bind_tools", "isinstance", "len"} else None

    def _clears(self, file: _File, call: ast.Call) -> bool:
        """Return True if Keyturn clears the calls of the tools in a call."""
        return self._is_wrapper(file, call.func) or any(
            one.arg in _GATE_KEYWORDS and self._is_gate(file, one.value, _AGENT_GATES)
            for one in call.keywords
        )

    def _is_wrapper(self, file: _File, node: ast.AST) -> bool:
        return file.is_from(node, _WRAPPERS) or (
            isinstance(node, ast.Attribute)
            and node.attr == "guarded"
            and self._is_gate(file, node.value, _RECEIPTS)
        )

    def _is_gate(self, file: _File, node: ast.AST, gates: frozenset[str]) -> bool:
        key = (node, gates)
        if key not in self.gates:
            # For a variable that is made of itself.
            self.gates[key] = False
            self.gates[key] = self._makes_gate(file, node, gates)
        return self.gates[key]

    def _makes_gate(self, file: _File, node: ast.AST, gates: frozenset[str]) -> bool:
        match node:
            case ast.Call():
                return file.is_from(node.func, gates)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return any(self._is_gate(file, one, gates) for one in parts)
            case ast.Starred():
                return self._is_gate(file, node.value, gates)
            case ast.Name() | ast.Attribute():
                made = self._values(file, node)
                return bool(made) and all(self._is_gate(*one, gates) for one in made)
            case _:
                return False

    def _values(self, file: _File, node: ast.AST) -> list[_Place]:
        return [it for name in self._names(file, node) for it in self.values[name]]

    def _names(self, file: _File, node: ast.AST) -> list[_Name]:
        """Return the names that an expression may mean; none if it is no name."""
        match node:
            case ast.Attribute(attr=name):
                others = self.shared[name] if file.is_imported(node.value) else ()
                return [(None, name), *others]
            case ast.Name(id=name):
                own = (file, name)
                is_own = name not in file.imports and own in self.values
                if not is_own and (name in file.imports or "*" in file.imports):
                    return [*self.shared[_last_part(file.imports.get(name, name))]]
                return [own]
            case _:
                return []


def _parts(node: ast.AST) -> Sequence[ast.AST] | None:
    """Return the parts of a list of tools; None if the node is no such list."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return parts
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=parts):
            return parts
        case ast.Starred(value=one) | ast.NamedExpr(value=one) | ast.ListComp(elt=one):
            return [one]
        case ast.BinOp():
            return [node.left, node.right]
        case _:
            return [] if isinstance(node, ast.Constant) else None


def _made(value: ast.AST) -> list[ast.AST]:
    """Return the values that a function returns, or the class of which it makes one."""
    found = [it.value for it in ast.walk(value) if isinstance(it, ast.Return)]
    is_function = isinstance(value, _Function)
    return [it for it in found if it] if is_function and found else [value]


def _last_part(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _python_files(root: Path, skipped: list[str], unread: list[str]) -> Iterator[Path]:
    seen = set[str]()
    for folder, folders, files in os.walk(
        root, followlinks=True, onerror=lambda error: unread.append(error.filename)
    ):
        here = Path(folder)
        # Each folder once: links to folders may form a loop.
        if (real := str(here.resolve())) in seen:
            folders.clear()
            continue
        seen.add(real)
        skipped += [str(here / one) for one in folders if one in _TESTS]
        folders[:] = sorted(
            one
            for one in folders
            if one not in _TESTS | _SKIPPED
            and one[0] != "."
            and not (here / one / "pyvenv.cfg").exists()
        )
        for name in sorted(one for one in files if one.endswith((".py", ".ipynb"))):
            is_test = name.startswith(("test_", "conftest.")) or "_test.py" in name
            if is_test or name.endswith(".ipynb"):
                skipped.append(str(here / name))
            # Reading a pipe would wait forever.
            elif (here / name).is_file():
                yield here / name
            else:
                unread.append(str(here / name))


def scanned(root: Path) -> dict[str, Any]:
    """Return the tools without a gate, and the files that were not read."""
    files, skipped, unread = list[_File](), list[str](), list[str]()
    paths = _python_files(root, skipped, unread) if root.is_dir() else [root]
    for path in paths:
        try:
            if is_read := path.is_file() and path.stat().st_size <= _LARGEST:
                files.append(_File(path))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            is_read = False
        unread += [] if is_read else [str(path)]
    found = _Analysis(files)
    tools = [*found.ungated()]
    return {
        "tools": tools,
        "cleared": len(found.tools) - len(tools),
        "read": len(files),
        "unread": unread,
        "skipped": skipped,
    }


def scan(
    path: Annotated[Path, argument("PATH", "A folder or a file.")],
    *,
    json: console.AsJson = False,
) -> None:
    """List tools of a code base that can run without a gate of Keyturn.

    It reads Python files and never runs them. It follows each tool to the agents that
    use it, and lists all tools that it cannot follow to a gate. It does not read tests,
    notebooks, hidden folders and installed packages. Exits with 1 if it lists a tool or
    could not read a file. 'keyturn doctor' inspects the agents that are built.

    Examples:
      keyturn scan src         the tools of a code base
      keyturn scan src --json  for a machine
    """
    if not path.exists():
        raise SettingsError(f"There is no {str(path)!r}; name a folder or a file.")
    found = scanned(path)
    if not found["read"] and not found["unread"]:
        raise SettingsError(
            f"{str(path)!r} has no Python file; name a folder with code."
        )
    if json:
        console.as_json(found)
    else:
        for one in found["tools"]:
            text = f"{one['file']}:{one['line']} {one['tool']}, used at {one['use']}"
            console.bad(f"{console.printable(text)}: {one['remedy']}.")
        for file in found["unread"]:
            console.bad(
                f"{console.printable(file)} cannot be read; look for tools in it."
            )
        for file in found["skipped"]:
            console.note(
                f"{console.printable(file)} is not read; it has tests or is a notebook."
            )
        cleared, every = found["cleared"], found["cleared"] + len(found["tools"])
        console.note(f"Used only through gates: {cleared} of {every} tools.")
    if found["tools"] or found["unread"]:
        raise typer.Exit(1)
