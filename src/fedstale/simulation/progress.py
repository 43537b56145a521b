"""Live progress of a run: round, accuracy, loss, β, who is here, time left."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..analysis.metrics import metric_text
from ..terminal import Bar, make_bar, shows_progress
from .history import Record
from .interfaces import Callback
from .loop import Simulation
from .settings import Settings


@dataclass
class RoundProgress(Callback):
    """One bar for one run, in a terminal or a notebook."""

    label: str
    rounds: int
    shown: dict[str, float] = field(default_factory=dict)
    _bar: Bar | None = field(default=None, init=False, repr=False)

    def on_start(self, simulation: Simulation) -> None:
        """Show the bar where the run stands."""
        self._bar = make_bar(self.label, self.rounds)
        self._bar.update(simulation.state.round, "")

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Move on; numbers that were not measured now stay as they were."""
        self.shown |= record.metrics
        numbers = f"here {len(record.participants)}/{simulation.federation.num_clients}"
        for key, name in (("accuracy", "accuracy"), ("excess_loss", "excess"), ("train_loss", "loss"), ("beta", "β")):
            if key in self.shown:
                numbers += f"  {name} {metric_text(key, self.shown[key])}"
        if self._bar is not None:
            self._bar.update(record.round + 1, numbers)

    def on_end(self, simulation: Simulation, reason: str) -> None:
        """Leave the last line standing."""
        if self._bar is not None:
            self._bar.stop()


def round_progress(settings: Settings, wanted: bool | None) -> list[Callback]:
    """Return the callback that shows progress, where it is wanted."""
    return [RoundProgress(settings.label, settings.total_rounds)] if shows_progress(wanted) else []
