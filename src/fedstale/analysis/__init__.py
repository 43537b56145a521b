"""What runs are judged by and how they are shown, as plain data: no picture library is imported here.

One of each, for `compare`, sweeps, the paper's figures, the report and the board: the tail of a run, a mean over seeds
with its error, a curve over seeds, what a method is called and its colour. Numbers keep to one policy: **a run
that diverged has no result**. Its tail is NaN, the mean of its method is NaN, the curve of its method ends before its
round, and all of them say which round it was. It is never left out of a mean, which would flatter its method. How sure
a difference between methods is, `evidence` says.

Rounds are counted from 1 in words and pictures and in `diverged_in`: a run that diverged in round 17 has 16 rounds.
"""

from .attendance import Raster, raster
from .curve import Curve, over_seeds
from .estimate import Estimate, diverged_text
from .gap import ClosedOverCells, Gap, closed_over_cells, ratio_of_means
from .heatmap import HeatMap, Square
from .methods import METHOD_SETTINGS, config_label, method_label, method_order
from .palette import COLOURS, Style, style, styles
from .ranking import Ahead, ahead, mean_ranks, ranks
from .table import Cell, MeasuredRun, Table
from .tail import TAIL, tail
from .target import Cost, cost_to_target
from .tuning import decades_of_good_rates, tuned

__all__ = [
    "COLOURS",
    "METHOD_SETTINGS",
    "TAIL",
    "Ahead",
    "Cell",
    "ClosedOverCells",
    "Cost",
    "Curve",
    "Estimate",
    "Gap",
    "HeatMap",
    "MeasuredRun",
    "Raster",
    "Square",
    "Style",
    "Table",
    "ahead",
    "closed_over_cells",
    "config_label",
    "cost_to_target",
    "decades_of_good_rates",
    "diverged_text",
    "mean_ranks",
    "method_label",
    "method_order",
    "over_seeds",
    "ranks",
    "raster",
    "ratio_of_means",
    "style",
    "styles",
    "tail",
    "tuned",
]
