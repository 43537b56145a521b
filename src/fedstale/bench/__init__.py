"""The benchmark: settings with uneven participation, every rule at its own best rate, a table that others can check.

from fedstale import bench
from fedstale.store import Store

with Store.open("runs") as store:
    work = bench.BenchRun(bench.SUITE[:1], bench.bench_methods("tempered,mifa"), store, Path("bench.csv"))
    for setting in work.run():
        print(setting.name)
"""

from .contest import Entry, Score, all_present, choose_rates, judge
from .leaderboard import page, result_files
from .machine import instructions, machine_kind
from .results import ResultRow, config_hash, read
from .run import BenchRun, bench_methods, why_not
from .standings import Standing, standings
from .suite import (
    AVAILABILITY,
    PROBLEMS,
    QUICK,
    SUITE,
    WHOLE,
    BenchProblem,
    BenchSetting,
    Seeds,
    log_uniform,
    settings_named,
)
from .verify import (
    Check,
    ends_again,
    following,
    gap_ends,
    inconsistent,
    quick,
    rerun,
    runnable,
    sampled,
    sound,
    without_ends,
)

__all__ = [
    "AVAILABILITY",
    "PROBLEMS",
    "QUICK",
    "SUITE",
    "WHOLE",
    "BenchProblem",
    "BenchRun",
    "BenchSetting",
    "Check",
    "Entry",
    "ResultRow",
    "Score",
    "Seeds",
    "Standing",
    "all_present",
    "bench_methods",
    "choose_rates",
    "config_hash",
    "ends_again",
    "following",
    "gap_ends",
    "inconsistent",
    "instructions",
    "judge",
    "log_uniform",
    "machine_kind",
    "page",
    "quick",
    "read",
    "rerun",
    "result_files",
    "runnable",
    "sampled",
    "settings_named",
    "sound",
    "standings",
    "why_not",
    "without_ends",
]
