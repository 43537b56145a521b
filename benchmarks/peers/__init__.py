"""The same work done by us and by what a user would pick instead, side by side: `make bench-peers`.

`work.py` says what the work is, `export.py` writes its data once, each `with_*.py` does it with one framework in an
environment of its own, `race.py` runs them in turn and measures, `page.py` writes docs/benchmarks.md.
"""
