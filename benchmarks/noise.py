"""How much participation noise a choice of β leaves, against the least that any common β could.

    python benchmarks/noise.py [--quick] [--trace FILE] [--out FOLDER]
    python benchmarks/noise.py --cell mnist-mlp:0.02:1:0.1 --seeds 3

All 24 clients train in every round, whether they take part or not; so the noise of the server's update given the past,
V(β) = Σ α_i² (1 − p_i)/p_i ‖Δ_i − β_i h_i‖², is known exactly, and so is the β that makes it smallest. Every choice of
β looks on at one path of the model, that of β = auto, and at the same participants; shown is the sum of its V over the
second half of the rounds, over the sum of the least values: 1 is perfect, and only a β of each client's own can go
below. "before" is auto as it was, without 1/p_i, with equal weights for all rounds and nothing for a first update.
Mean ± standard error over seeds (noise.csv):

- digits-mlp with the paper's two groups, at the rates most often best in the heat map of docs/results;
- digits-mlp and mnist-logistic with mixed p: log-uniform in [0.01, 1], and the shares of time in which phones were
  there (lines of 1, 0, ? = there, not, unknown, one character a phone: `--trace`, or availability-phones.txt in the
  folder FEDSTALE_DATA; left out where it is missing). Labels are swapped in the rarer half;
- 20 clients with p = 0.5 whose updates correlate by 0.95, two with p = 0.01 whose updates do not.

Figure 1 (noise-figure1.csv) follows each choice on its own path: mean excess loss over 4000 rounds, and the noise.

`--cell TASK:P_MIN:SWAP:RATE` looks closer, each choice on its own path, at every fifth round of the second half: V
itself, which depends on where a β has led, the mean ‖Δ_i‖² of the rare clients, test loss and accuracy
(noise-cells.csv, to which cells are added).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import fedstale as fs
from benchmarks.peers import machine
from benchmarks.two_clients import TwoClients
from fedstale import beta as betas
from fedstale.analysis.estimate import Estimate
from fedstale.checks import Float
from fedstale.federation import CheckedRound, Ints, check_round
from fedstale.memory.kernel import Sums
from fedstale.participation import Bernoulli, Participation, frequencies, read_phones
from fedstale.simulation import make_settings
from fedstale.simulation.build import build
from fedstale.simulation.update_noise import everybody_round
from fedstale.state import State
from fedstale.theory import tempered_noise


class Before(betas.Auto):
    """Auto as it was: Σ α²ω⟨Δ,h⟩ / Σ α²ω‖h‖² over all past returns."""

    def observe(self, state: State, round: CheckedRound, sums: Sums) -> None:
        """Add the round's returns, without 1/p_i."""
        weight = round.alpha**2 * (1.0 - round.probabilities) / round.probabilities
        state.own(betas.AutoState).sums += weight @ sums.inner, weight @ sums.stale_sq


CHOICES: dict[str, betas.Beta] = {
    **{f"{beta:g}": betas.Constant(beta) for beta in (0.0, 0.2, 0.5, 0.8, 1.0)},
    "before": Before(),
    "auto": betas.Auto(),
    "auto-per-client": betas.AutoPerClient(),
}
BETAS: tuple[float | str, ...] = (0.0, 0.2, 0.5, 0.8, 1.0, "auto", "auto-per-client")
RATES = {0.5: 0.1, 0.1: 0.1, 0.02: 0.1**1.5, 0.01: 0.1**1.5}
"""p_min and learning rate."""
SWAPS = (0.0, 0.6, 1.0)
SEEDS = range(10, 13)
"""Not those that chose how auto works (100, 101)."""
N = 24
FIGURE1 = {"1, 0.01": np.array([1.0, 0.01]), "0.5, 0.01": np.array([0.5, 0.01])}
FIGURE1_RATES = (0.001, 0.002, 0.003, 0.004, 0.005)
FIGURE1_RUNS = 40
TRACE = "availability-phones.txt"

Path_ = Iterator[tuple[Float, Float, Ints]]
"""Everybody's updates, everybody's memory, and who came, round by round."""


def watch(federation: fs.Federation, p: Float, path: Path_, rounds: int) -> dict[str, float]:
    """Return the noise over the least of every choice."""
    everybody = np.arange(federation.num_clients)
    states = {name: State(federation, "fedstale") for name in CHOICES}
    for name, choice in CHOICES.items():
        states[name].of_rule = choice.init(states[name])
    omega = federation.alpha() ** 2 * (1 - p) / p
    noise, least = dict.fromkeys(CHOICES, 0.0), 0.0
    for t, (fresh, stale, who) in enumerate(path):
        inner, squares = np.sum(fresh * stale, axis=1), np.sum(stale**2, axis=1)
        lengths = np.sum(fresh**2, axis=1)

        def at(beta: Float | float) -> float:
            return float(omega @ (lengths - 2 * beta * inner + beta**2 * squares))  # noqa: B023

        if 2 * t >= rounds:
            best = np.clip(omega @ inner / (omega @ squares), 0, 1) if omega @ squares > 0 else 0.0
            least += at(best)
            for name, choice in CHOICES.items():
                noise[name] += at(choice.of_clients(states[name], everybody))
        came = check_round(federation, fs.Round(t, who, fresh[who], probabilities=p[who]))
        seen = Sums(np.empty(0), np.empty(0), inner[who], squares[who])
        for name, choice in CHOICES.items():
            if came.size:
                choice.observe(states[name], came, seen)
    return {name: value / least for name, value in noise.items()}


def followed(task: str, p: Float, swap: float, lr: float, rounds: int, seed: int) -> dict[str, float]:
    """Watch a run of a task with these probabilities; labels are swapped in the rarer half."""
    rare = np.argsort(np.argsort(-p, kind="stable")) >= len(p) // 2
    chosen = make_settings(task=task, swap=swap, beta="auto", seed=seed, lr=lr, rounds=rounds, evaluate_every=10**6)
    participation = Participation(Bernoulli(p, labels=rare.astype(np.int64)))
    run = build(chosen, participation=participation, progress=False)

    def path() -> Path_:
        everybody = np.arange(len(p))
        while not run.done:
            t = run.state.round
            fresh = np.asarray(everybody_round(run).updates, dtype=float)
            stale = run.state.memory.rows(everybody)
            run.step()
            yield fresh, stale, np.flatnonzero(run.state.last_seen == t)

    found = watch(run.federation, p, path(), rounds)
    run.state.close()
    return found


def correlated(seed: int, rounds: int = 1500, length: int = 400) -> dict[str, float]:
    """20 clients with p = .5 whose updates correlate by .95 and two with p = .01 whose updates do not."""
    p, like = np.repeat([0.5, 0.01], [20, 2]), np.repeat([0.95, 0.0], [20, 2])[:, None]
    rng = np.random.default_rng(seed)

    def path() -> Path_:
        lasting, stale = rng.normal(size=(len(p), length)), np.zeros((len(p), length))
        for _ in range(rounds):
            fresh = like**0.5 * lasting + (1 - like) ** 0.5 * rng.normal(size=lasting.shape)
            who = np.flatnonzero(rng.random(len(p)) < p)
            yield fresh, stale.copy(), who
            stale[who] = fresh[who]

    return watch(fs.Federation(len(p), length), p, path(), rounds)


def two_groups(p_min: float, seed: int) -> Float:
    """Half of the clients always come, whatever the seed: the paper's set-up."""
    return np.repeat([1.0, p_min], N // 2)


def log_uniform(seed: int) -> Float:
    """Draw p between 0.01 and 1."""
    return np.asarray(0.01 ** np.random.default_rng(seed).random(N))


def phones(trace: Path) -> Callable[[int], Float]:
    """Draw p from the shares of the known half-hours in which phones were there, of those neither always nor never."""
    share = frequencies(read_phones(trace)).probabilities
    share = share[(share > 0) & (share < 1)]
    return lambda seed: np.random.default_rng(seed).choice(share, N, replace=False)


@dataclass(frozen=True)
class Problem:
    """A task with probabilities that may be drawn anew for each seed."""

    task: str
    p: str
    draw: Callable[[int], Float]
    swap: float
    lr: float
    rounds: int

    def watch(self, seed: int) -> dict[str, float]:
        """Noise over the least of every choice, of one seed."""
        if self.task == "correlated":
            return correlated(seed, self.rounds)
        return followed(self.task, self.draw(seed), self.swap, self.lr, self.rounds, seed)


def problems(trace: Path | None, quick: bool) -> Iterator[Problem]:
    """Yield the problems of the table."""
    pairs: dict[float, Callable[[int], Float]] = {p_min: partial(two_groups, p_min) for p_min in RATES}
    yield Problem("correlated", "20 × 0.5 and 2 × 0.01", lambda _: np.empty(0), 0.0, 0.0, 1500)
    for p_min in [0.5] if quick else RATES:
        for swap in SWAPS:
            yield Problem("digits-mlp", f"{p_min:g}", pairs[p_min], swap, RATES[p_min], round(10 / p_min))
    if quick:
        return
    mixed: dict[str, Callable[[int], Float]] = {"log-uniform": log_uniform}
    if trace is not None:
        mixed["phones"] = phones(trace)
    for name, draw in mixed.items():
        for swap in (0.0, 0.6):
            yield Problem("digits-mlp", name, draw, swap, 0.1**1.5, 400)
    for name, draw in ({"0.1": pairs[0.1]} | mixed).items():
        yield Problem("mnist-logistic", name, draw, 0.6, 0.1, 200)


def figure1(runs: int) -> Iterator[dict[str, str]]:
    """Each choice on its own path."""
    for name, p in FIGURE1.items():
        came = np.random.default_rng(SEEDS[0]).random((4000, runs, 2)) < p
        for lr in FIGURE1_RATES:
            for choice in list(CHOICES)[:-1]:  # a β of each client's own is not written down there
                two = TwoClients(lr, choice if choice in ("before", "auto") else float(choice), came, p)
                with np.errstate(all="ignore"):
                    excess = two.run()
                    loss, last = Estimate.of(excess.mean(axis=0)), Estimate.of(excess[-400:].mean(axis=0))
                    ratio = float(np.median(two.noise / two.least))
                row = {"p": name, "lr": f"{lr:g}", "beta": choice, "excess": f"{loss.mean:.4g}"}
                row |= {"excess error": f"{loss.error:.2g}", "last tenth": f"{last.mean:.3g}"}
                yield row | {
                    "last tenth error": f"{last.error:.2g}",
                    "noise over the least": f"{ratio:.3g}",
                    "runs": str(runs),
                }


@dataclass(frozen=True)
class Seen:
    """Means over the second half of a run."""

    noise: float
    """V(β) as it was."""
    least: float
    """V at the common β that makes it smallest."""
    rare: float
    """‖Δ_i‖² of the rare clients."""
    loss: float
    accuracy: float


def follow(task: str, p_min: float, swap: float, beta: float | str, seed: int, lr: float, every: int = 5) -> Seen:
    """Run a setting, and in the second half let everybody train in every so many rounds; with scores."""
    chosen = make_settings(task=task, p_min=p_min, swap=swap, beta=beta, seed=seed, lr=lr, evaluate_every=10**6)
    run, chooser = build(chosen), betas.make(beta)
    everybody = np.arange(run.federation.num_clients)
    rare = everybody >= len(everybody) // 2  # the paper's two groups
    p, alpha = np.where(rare, p_min, 1.0), run.federation.alpha()
    weight = alpha**2 * (1 - p) / p
    seen = []
    while not run.done:
        if 2 * run.state.round >= run.rounds and run.state.round % every == 0:
            fresh = np.asarray(everybody_round(run).updates, dtype=float)
            stale = run.state.memory.rows(everybody)
            own = chooser.of_clients(run.state, everybody)
            inner, squares = np.sum(fresh * stale, axis=1), np.sum(stale**2, axis=1)
            best = np.clip(weight @ inner / (weight @ squares), 0, 1) if weight @ squares > 0 else 0.0
            noise, least = (tempered_noise(fresh, b * stale, p, alpha, 1.0) for b in (own[:, None], best))
            scores = run.trainer.evaluate(run.model).metrics
            lengths = np.sum(fresh[rare] ** 2, axis=1)
            seen.append((noise, least, lengths.mean(), scores["test_loss"], scores["accuracy"]))
        run.step()
    run.state.close()
    return Seen(*(float(value) for value in np.mean(seen, axis=0)))


def cell(text: str, seeds: int, out: Path) -> None:
    """Look closer at one setting; the file keeps those of earlier calls."""
    task, *numbers = text.split(":")
    p_min, swap, lr = map(float, numbers)
    path = out / "noise-cells.csv"
    rows = machine.read(path)
    rows = [row for row in rows if (row["task"], row["p_min"], row["swap"]) != (task, str(p_min), str(swap))]
    for beta in BETAS:
        seen = [follow(task, p_min, swap, beta, seed, lr) for seed in range(seeds)]
        row = {"task": task, "p_min": str(p_min), "swap": str(swap), "lr": f"{lr:.4g}", "beta": str(beta)}
        row["noise over the least"] = f"{sum(one.noise for one in seen) / sum(one.least for one in seen):.4f}"
        for name in ("noise", "rare", "loss", "accuracy"):
            found = Estimate.of(getattr(one, name) for one in seen)
            row |= {name: f"{found.mean:.5g}", f"{name} error": f"{found.error:.2g}"}
        rows.append(row | {"seeds": str(seeds)})
        print(" ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    machine.write(path, rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one p_min, two seeds, for trials")
    parser.add_argument("--trace", type=Path, help="phones there or not; default FEDSTALE_DATA/availability-phones.txt")
    parser.add_argument("--cell", help="TASK:P_MIN:SWAP:RATE, to look closer at one setting")
    parser.add_argument("--seeds", type=int, default=3, help="of --cell")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs/results/benchmarks")
    arguments = parser.parse_args(argv)
    if arguments.cell:
        cell(arguments.cell, arguments.seeds, arguments.out)
        return
    trace = arguments.trace or Path(os.environ.get("FEDSTALE_DATA", ".")) / TRACE
    if not trace.is_file():
        print(f"p of phones is left out: there is no {trace} (--trace FILE)")
        trace = None
    rows = list(figure1(4 if arguments.quick else FIGURE1_RUNS))
    machine.write(arguments.out / "noise-figure1.csv", rows)
    for row in rows:
        print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    rows = []
    for problem in problems(trace, arguments.quick):
        seeds = SEEDS[:2] if arguments.quick else SEEDS
        found = [problem.watch(seed) for seed in seeds]
        about = {"task": problem.task, "p": problem.p, "swap": f"{problem.swap:g}", "lr": f"{problem.lr:.4g}"}
        about["rounds"] = str(problem.rounds)
        print(" ".join(about.values()), end="", flush=True)
        for choice in CHOICES:
            ratio = Estimate.of(each[choice] for each in found)
            print(f"  {choice} {ratio:.3f}", end="", flush=True)
            row = about | {"beta": choice, "noise over the least": f"{ratio.mean:.4f}"}
            rows.append(row | {"standard error": f"{ratio.error:.4f}", "seeds": str(len(seeds))})
        print(flush=True)
        machine.write(arguments.out / "noise.csv", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
