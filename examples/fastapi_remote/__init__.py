"""A FastAPI application whose agent asks a gateway elsewhere for approval."""
