"""The paper: Figures 1–5 and the table of claims, each by one command."""
