"""The MCP gate: a server of the Model Context Protocol in front of other servers.

Every tool call passes the policy and people, and is forwarded once with exactly the
approved arguments. The gate is a client of the gateway and cannot approve a call.
"""
