"""The settings of the benchmark: what is learned × who comes. One line each; to add one, add a line to `SUITE`.

A setting fixes data, split, model, local work, rounds and seeds: nothing is left to whoever runs it but the rule. The
rates are where tuning begins; they are widened by half decades until each rule's best is interior (`contest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import choose
from ..simulation.methods import Method
from ..simulation.settings import Settings, make_settings
from ..tasks.defaults import CLIENTS
from .contest import all_present


@dataclass(frozen=True)
class Seeds:
    """The seeds of a setting. No rule was designed with any of them.

    Attributes
    ----------
    choosing, judging
        Rates are chosen on the first and judged on the others.
    yardstick
        Further seeds on which the rate of everybody is chosen: it is no rival but what every gap is measured by, and a
        rate that the others happen to survive would spoil the gap of every rule.
    """

    choosing: tuple[int, ...]
    judging: tuple[int, ...]
    yardstick: tuple[int, ...] = ()


WHOLE = Seeds((200, 201), (20, 21, 22, 23, 24), (202, 203, 204, 205))
_FEW = Seeds(WHOLE.choosing[:1], WHOLE.judging[:3], WHOLE.choosing[1:])
"""Where a run takes minutes."""
QUICK = Seeds(WHOLE.choosing[:1], WHOLE.judging[:2], WHOLE.choosing[1:])
"""Of `--quick`, in every setting."""
_DRAWS = 8
"""Other participants for which the noise of the update is measured, in the first of the seeds for judging."""

_HALF = 10**-0.5


@dataclass(frozen=True)
class BenchProblem:
    """What is learned: a task with its settings, and rates to begin with.

    Attributes
    ----------
    settings
        Of the task; with `dirichlet`, labels are spread unevenly over the clients unless two groups swap theirs.
    rates
        Half decades around the rates that plain averaging likes; where a run takes minutes, only two.
    clients
        N.
    needs
        The data set that has to be fetched first; "" where it is embedded.
    natural
        Whether the clients are people or hospitals: their data are not to be partitioned or swapped.
    """

    settings: Mapping[str, Any]
    rates: tuple[float, ...]
    clients: int = 24
    needs: str = ""
    natural: bool = False


_SMALL = {"share": 0.08, "batch_size": 32}
"""200 MNIST images a client and batch 32."""
_DIRICHLET = {"partition": "dirichlet", "partition_options": {"alpha": 0.3}, "replacement": True}
"""A client may have fewer samples than a batch: batches are drawn with replacement."""


def _natural(task: str, data: str, rates: tuple[float, ...]) -> BenchProblem:
    """A natural federation as it is: its own clients, model and local work."""
    return BenchProblem({"task": task}, rates, CLIENTS[task], data, natural=True)


PROBLEMS: dict[str, BenchProblem] = {
    "digits": BenchProblem({"task": "digits-mlp"}, (_HALF, 0.1, 0.1 * _HALF)),
    "mnist-logistic": BenchProblem({"task": "mnist-logistic", **_SMALL}, (0.1, 0.1 * _HALF, 0.01), needs="mnist"),
    "mnist-mlp": BenchProblem({"task": "mnist-mlp", **_SMALL}, (_HALF, 0.1, 0.1 * _HALF), needs="mnist"),
    "wisdm": _natural("wisdm-mlp", "wisdm", (1.0, _HALF, 0.1)),
    "heart-disease": _natural("heart-disease-logistic", "heart-disease", (_HALF, 0.1, 0.1 * _HALF)),
    "shakespeare": _natural("shakespeare-gru", "shakespeare", (0.1 * _HALF, 0.01)),
}


def log_uniform(num_clients: int, lowest: float) -> list[float]:
    """p_i whose logarithms are uniform between `lowest` and 1: some clients nearly always come, some hardly ever."""
    return [float(p) for p in np.exp(np.random.default_rng(1).uniform(np.log(lowest), 0.0, num_clients))]


def _two_groups(n: int) -> dict[str, Any]:
    return {"participation": "two-groups", "p_min": 0.05}


def _log_uniform(n: int) -> dict[str, Any]:
    return {"participation": "bernoulli", "participation_options": {"p": log_uniform(n, 0.02)}}


def _day_night(n: int) -> dict[str, Any]:
    """A day has 24 rounds; a client comes often in the eight of its night and hardly in the others."""
    inside = [float(p) for p in np.clip(np.array(log_uniform(n, 0.1)), 0.1, 0.9)]
    return {
        "participation": "cyclic",
        "participation_options": {"period": 24, "open_fraction": 1 / 3, "inside": inside, "outside": 0.02},
    }


def _bursts(n: int) -> dict[str, Any]:
    """Sites of a fourth of the clients each, whose clients come together or not at all: correlation 0.8."""
    sites = [int(k) for k in np.arange(n) % min(4, n)]
    options = {"p": log_uniform(n, 0.05), "correlation": 0.8, "groups": sites}
    return {"participation": "correlated", "participation_options": options}


def _spells(n: int) -> dict[str, Any]:
    """On and off for a long time: the state of a round is kept with probability 0.9."""
    return {"participation": "markov", "participation_options": {"p": log_uniform(n, 0.05), "correlation": 0.9}}


def _phones(n: int) -> dict[str, Any]:
    """Five days of real phones in half-hours as they were, of phones that came at least once; then they start over."""
    options = {"kind": "replay", "only_seen": True, "repeat": True}
    return {"participation": "phones", "participation_options": options}


def _phone_days(n: int) -> dict[str, Any]:
    """Days of the same phones, drawn again: every seed has other days."""
    return {"participation": "phones", "participation_options": {"kind": "bootstrap", "only_seen": True}}


def _stragglers(n: int) -> dict[str, Any]:
    """A clock: half of the devices are seldom there, speeds differ, and a third of the replies miss the deadline.

    The computing of a typical device takes half a second.
    """
    who = {"participation": "two-groups", "p_min": 0.2, "slot_seconds": 10.0}
    return {**who, "server": "synchronous", "devices": "log-normal", "deadline": 0.8}


AVAILABILITY: dict[str, Callable[[int], dict[str, Any]]] = {
    "two-groups": _two_groups,
    "log-uniform": _log_uniform,
    "day-night": _day_night,
    "bursts": _bursts,
    "spells": _spells,
    "phones": _phones,
    "phone-days": _phone_days,
    "stragglers": _stragglers,
}
"""Who comes, for N clients."""


@dataclass(frozen=True)
class BenchSetting:
    """A setting: a problem, who comes, and for how many rounds.

    Attributes
    ----------
    problem, who
        Of `PROBLEMS` and `AVAILABILITY`.
    rounds
        T.
    quick
        Whether it is part of `--quick`.
    evaluations
        How often the model is judged on the way.
    seeds
        What a run of the whole takes.
    """

    problem: str
    who: str
    rounds: int = 200
    quick: bool = False
    evaluations: int = 20
    seeds: Seeds = WHOLE

    @property
    def name(self) -> str:
        """What it is called: "digits/two-groups"."""
        return f"{self.problem}/{self.who}"

    @property
    def learned(self) -> BenchProblem:
        """What is learned."""
        return choose("problem", self.problem, PROBLEMS)

    @property
    def timed(self) -> bool:
        """Whether there is a clock, so that rules are compared by seconds as well."""
        return "server" in AVAILABILITY[self.who](self.learned.clients)

    def settings(self, method: Method, lr: float, seed: int, *, noise: bool = False) -> Settings:
        """Return the settings of one run of a method; with `noise`, also the noise of its updates is measured."""
        problem = self.learned
        given = {"num_clients": problem.clients, **problem.settings, **AVAILABILITY[self.who](problem.clients)}
        if not problem.natural:
            given |= {"swap": 0.6} if self.who == "two-groups" else _DIRICHLET
        if method.everybody:
            given = all_present(given)
        own: dict[str, Any] = {"rule": method.rule, "beta": method.beta}
        if method.memory is not None:
            own["memory"] = method.memory
        every = max(1, self.rounds // self.evaluations)
        draws = _DRAWS if noise and not self.timed else 0  # in time nobody is drawn again
        shape = {"rounds": self.rounds, "evaluate_every": every, "update_noise": draws}
        return make_settings(**given, **own, **shape, lr=lr, seed=seed)


SUITE: tuple[BenchSetting, ...] = (
    BenchSetting("digits", "two-groups", quick=True),
    BenchSetting("digits", "log-uniform"),
    BenchSetting("digits", "day-night"),
    BenchSetting("digits", "bursts", quick=True),
    BenchSetting("digits", "spells"),
    BenchSetting("digits", "phones", rounds=240),
    BenchSetting("digits", "phone-days", rounds=240),
    BenchSetting("digits", "stragglers", evaluations=100),
    BenchSetting("mnist-logistic", "two-groups"),
    BenchSetting("mnist-logistic", "log-uniform"),
    BenchSetting("mnist-logistic", "day-night"),
    BenchSetting("mnist-logistic", "bursts"),
    BenchSetting("mnist-logistic", "phones", rounds=240),
    BenchSetting("mnist-mlp", "two-groups"),
    BenchSetting("mnist-mlp", "log-uniform"),
    BenchSetting("wisdm", "two-groups"),
    BenchSetting("wisdm", "log-uniform"),
    BenchSetting("wisdm", "phones", rounds=240),
    BenchSetting("heart-disease", "two-groups"),
    BenchSetting("heart-disease", "log-uniform"),
    BenchSetting("shakespeare", "phones", rounds=48, evaluations=1, seeds=_FEW),
)


def settings_named(names: str | None, suite: Sequence[BenchSetting] | None = None) -> list[BenchSetting]:
    """Return settings by their names, with commas between them; a problem or an availability means all of it."""
    suite = SUITE if suite is None else suite
    if names is None:
        return list(suite)
    found: list[BenchSetting] = []
    for name in (part.strip() for part in names.split(",")):
        some = [one for one in suite if name in (one.name, one.problem, one.who)]
        found += some or [choose("setting", name, {one.name: one for one in suite})]
    return list(dict.fromkeys(found))
