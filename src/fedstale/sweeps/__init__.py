"""Many runs: grids, lock-step batches, local workers, Ray; learning rates tuned alike for every method.

from fedstale import sweeps
from fedstale.store import Store

grid = sweeps.Grid("swaps", {"task": "digits-mlp"}, {"swap": [0, 0.6], "beta": [0, "auto"], "seed": [0, 1, 2]})
with Store.open("runs") as store:
    sweeps.sweep(grid.runs(), store, name=grid.name, executor=sweeps.processes(2))
    table = sweeps.results(store, grid.runs())
"""

from .batches import Batch, plan, run_batch
from .executors import in_process, processes, ray
from .grid import Grid, from_file, lr_grid
from .outcome import RunOutcome
from .results import measure, results, settings_of, write_csv
from .sweep import SweepProgress, missing, sweep
from .widening import at_edges, widen

__all__ = [
    "Batch",
    "Grid",
    "RunOutcome",
    "SweepProgress",
    "at_edges",
    "from_file",
    "in_process",
    "lr_grid",
    "measure",
    "missing",
    "plan",
    "processes",
    "ray",
    "results",
    "run_batch",
    "settings_of",
    "sweep",
    "widen",
    "write_csv",
]
