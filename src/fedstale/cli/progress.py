"""Live progress in the terminal: round, accuracy, loss, β, who is here, time left."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..analysis.metrics import metric_text
from ..simulation.history import Record
from ..simulation.loop import Callback, Simulation
from .options import make_console


@dataclass
class RoundProgress(Callback):
    """One bar for one run."""

    label: str
    rounds: int
    shown: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=make_console(err=True),
        )
        self._task = self._progress.add_task(self.label, total=self.rounds, numbers="")

    def on_start(self, simulation: Simulation) -> None:
        """Show the bar where the run stands."""
        self._progress.update(self._task, completed=simulation.state.round)
        self._progress.start()

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Move on; numbers that were not measured now stay as they were."""
        self.shown |= record.metrics
        numbers = f"here {len(record.participants)}/{simulation.federation.num_clients}"
        for key, name in (("accuracy", "accuracy"), ("excess_loss", "excess"), ("train_loss", "loss"), ("beta", "β")):
            if key in self.shown:
                numbers += f"  {name} {metric_text(key, self.shown[key])}"
        self._progress.update(self._task, completed=record.round + 1, numbers=numbers)

    def on_end(self, simulation: Simulation, reason: str) -> None:
        """Leave the last line standing."""
        self._progress.stop()
