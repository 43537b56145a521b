"""Whatever happens after a checkpoint, until the next one is complete, the last one loads with all its bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import state as states
from fedstale.difference import Difference
from tests.everything import everything

N, D = 5, 7
RULE = fs.FedStale(beta=0.5)

# What happens one after the other. A save that fails has written its rows already, but not the file that names them.
EVENTS = (
    *("round", "save", "round", "round", "failed save", "round", "failed save", "round", "read", "save"),
    *("read", "round", "save", "everybody", "everybody", "failed save", "everybody"),
    *("resume", "round", "everybody", "failed save", "round", "read", "save", "resume", "everybody", "everybody"),
)


class Crash(Exception):
    """Stands for the end of the process."""


def train(state: fs.State, event: str) -> None:
    """One round, of which the events before decide nothing but the index."""
    rng = np.random.default_rng(state.round)
    who = np.arange(N) if event == "everybody" else np.sort(rng.choice(N, 3, replace=False))
    updates: Any = rng.normal(size=(len(who), D)).astype(np.float32)
    if event == "read":  # not computed yet: rows are replaced where they are
        start = np.zeros(D, dtype=np.float32)
        updates = [Difference(start, [start - update], np.array([0, D])) for update in updates]
    RULE.step(state, fs.Round(state.round, who, updates, probabilities=0.5))


@pytest.mark.parametrize("where", ["ram", "disk:{}/rows"])
@pytest.mark.parametrize("crash", range(2, len(EVENTS) + 1))
def test_the_last_checkpoint_is_whole(where: str, crash: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first `crash` events happen, then nothing more: what loads is the last checkpoint that was completed."""
    state = RULE.init(fs.Federation(N, D), memory=where.format(tmp_path), model=np.zeros(D))
    folder, whole = tmp_path / "checkpoint", everything(state)

    def full(*_: Any) -> None:
        raise Crash

    for event in EVENTS[:crash]:
        if event == "save":
            state.save(folder)
            whole = everything(state)
        elif event == "failed save":
            with monkeypatch.context() as patch:
                patch.setattr(states, "write_tensors", full)
                with pytest.raises(Crash):
                    state.save(folder)
        elif event == "resume":
            state.close()
            state = fs.State.load(folder)
            assert everything(state) == whole
        else:
            train(state, event)
    state.close()
    found = fs.State.load(folder)
    assert everything(found) == whole
    found.close()
