"""A report: what a store, a sweep or a run holds, as one HTML file that can be mailed. No scripts, nothing fetched.

from fedstale import report
from fedstale.store import Store

with Store.open("fedstale-runs", read_only=True) as store:
    size = report.write(report.page(store, report.find(store, None)), Path("report.html"))
"""

from .page import page
from .subject import Subject, find, locate
from .write import refuse, write

__all__ = ["Subject", "find", "locate", "page", "refuse", "write"]
