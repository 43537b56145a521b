"""The round loop (Algorithm 1): who comes, what they learned, how it is combined, what it did.

`Simulation` drives the same rule objects as a real federation. Everything that is not mathematics (progress,
storing, stopping) is a callback.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, NonFinite, fail, positive_int
from ..durable import FileTrouble
from ..federation import Federation, Ints, Round
from ..interrupts import postponed
from ..participation import Estimator, Participation
from ..rules import Rule
from ..rules.coverage import warn_if_uncovered
from ..screening import screen
from ..state import State
from .coverage import Coverage
from .history import Metrics, Record, RoundsInMemory
from .interfaces import Callback, Trainer
from .update_noise import noise_of_update, other_draws

_logger = getLogger("fedstale")


@dataclass
class Simulation:
    """A federation in one process that can be stepped, run, saved and resumed.

    Parameters
    ----------
    trainer
        Local training and evaluation.
    rule
        How updates are combined.
    participation
        Who shows up and whom the server asks.
    estimator
        Where the p_i come from.
    federation
        The clients: N, d and the weights α_i.
    rounds
        T.
    seed
        Decides who comes; the trainer has its own.
    memory
        Where stale updates live.
    evaluate_every
        Rounds between evaluations; the last round is always evaluated.
    evaluate_early
        Whether rounds 1, 2, 4, 8, … before the first of those are evaluated, too.
    per_client
        Whether evaluations keep every client's accuracy.
    memory_error
        Whether evaluations record H^(t), how far the remembered updates are from the gradients: a pass over all data.
    update_noise
        Draws of other participants for which evaluated rounds are combined as well, to record noise and bias of the
        update (`simulation.update_noise`); 0: none.
    leave_out
        Whether a client whose update cannot be used (NaN, infinite, too large) is left out of the round; otherwise
        the run has diverged.
    coverage
        Who never comes, where somebody does not: it is said, and the share of the others is recorded.
    resume_from
        A state to resume from.
    keep_records
        Whether `records` keeps the rounds in RAM, under 200 bytes each; not needed where a store has them.
    """

    trainer: Trainer
    rule: Rule
    participation: Participation
    estimator: Estimator
    federation: Federation
    rounds: int
    seed: int = 0
    memory: str = "ram"
    evaluate_every: int = 1
    evaluate_early: bool = False
    per_client: bool = False
    memory_error: bool = False
    update_noise: int = 0
    leave_out: bool = False
    coverage: Coverage | None = None
    resume_from: InitVar[State | None] = None
    callbacks: Sequence[Callback] = ()
    keep_records: bool = True
    records: RoundsInMemory = field(default_factory=RoundsInMemory)
    stop: bool = False
    """A callback may set this to end the run after the current round."""
    state: State = field(init=False)
    between_rounds: bool = field(default=True, init=False)
    """Whether the state is that of a whole round: not while one is under way, nor after one that was cut short."""
    estimated: Float | None = field(default=None, init=False)
    """The p̂ of all clients that the last evaluated round used, shape (N,)."""

    def __post_init__(self, resume_from: State | None) -> None:
        positive_int("rounds", self.rounds)
        positive_int("evaluate_every", self.evaluate_every)
        if self.memory_error and (not self.rule.memory or self.rule.per_step):
            raise fail("memory_error", True, f"needs a rule that stores client updates; {self.rule.name} does not")
        if self.memory_error and not hasattr(self.trainer, "gradients"):
            raise fail("memory_error", True, "needs a trainer with gradients(model): ∇F_i of all clients, shape (N, d)")
        if self.update_noise == 1 or (self.update_noise and not self.memory.startswith("ram")):
            raise fail("update_noise", self.update_noise, "needs two draws or more, and stale updates in RAM")
        if resume_from is not None:
            self.state = resume_from
            return
        self.state = self.rule.init(self.federation, memory=self.memory, model=self.trainer.initial())
        self.state.estimator = self.estimator.init(self.federation.num_clients)

    @property
    def model(self) -> NDArray[Any]:
        """w_t."""
        if self.state.model is None:
            raise RuntimeError("a simulation's state always carries its model")
        return self.state.model

    @property
    def knows_probabilities(self) -> bool:
        """Whether the p_i of the participation process are those with which clients take part."""
        return True

    @property
    def done(self) -> bool:
        """Whether all rounds were run."""
        return self.state.round >= self.rounds

    def step(self) -> Record:
        """Run one round: all of it, or (where the rule refuses it) nothing."""
        state, t, started = self.state, self.state.round, time.perf_counter()
        if state.estimator is None:
            raise RuntimeError("a simulation's state always carries its estimator")
        if not self.between_rounds:
            raise RuntimeError("a round of this simulation was interrupted: resume from its last checkpoint")
        round, metrics = self._gather(t)
        trained = clients = np.asarray(round.clients, dtype=np.int64)
        if self.leave_out:
            round = self._screened(round)
            metrics["left_out"] = float(len(clients) - len(np.asarray(round.clients)))
            clients = np.asarray(round.clients, dtype=np.int64)
        evaluated = self._is_evaluated(t)
        if evaluated:  # the p̂ that the round uses: it is not counted yet
            self.estimated = self.estimator.probabilities(state.estimator, np.arange(self.federation.num_clients))
            metrics["p_error"] = p_error(self.participation, t, self.estimated) if self.knows_probabilities else np.nan
        before = np.array(self.model) if evaluated and self.memory_error else None
        self.between_rounds = False
        try:
            delta = self.rule.step(state, round)
        except Exception:
            self.between_rounds = state.round == t  # a rule refuses a round before it changes anything
            raise
        self.estimator.observe(state.estimator, clients, t)
        if hasattr(self.trainer, "after_round"):  # one that keeps something of its clients: running means of a model
            self.trainer.after_round(trained, clients)
        metrics |= self._after_step()
        with np.errstate(over="ignore"):  # on its way to diverging: the next rounds will say so
            metrics["update_norm"] = float(np.linalg.norm(delta))
        metrics |= state.report
        per_client = None
        if evaluated:
            metrics["server_bytes"] = float(state.nbytes)
            if self.coverage is not None:
                metrics["coverage"] = self.coverage.share
            evaluation = self.trainer.evaluate(self.model)
            metrics |= evaluation.metrics
            per_client = evaluation.per_client if self.per_client else None
        loss = getattr(self.trainer, "train_loss", None)
        if loss is not None and len(clients):
            metrics["train_loss"] = float(loss)
        if before is not None:
            metrics["memory_error"] = self._memory_error(t, before)
        metrics["seconds"] = time.perf_counter() - started
        record = Record(t, metrics, clients, per_client)
        if self.keep_records:
            self.records.add(record)
        self.between_rounds = True
        return record

    def _gather(self, t: int) -> tuple[Round, Metrics]:
        """Find out who takes part, and let them train."""
        clients = self._participants(t)
        p = self._probabilities(clients)
        metrics = before_round(self.rule, self.state, t, clients, self.model.itemsize)
        if self.update_noise and self._is_evaluated(t):  # before the training, whose array an engine may use again
            metrics |= noise_of_update(self, other_draws(self, self.update_noise))
        return self._train(t, clients, p), metrics

    def _after_step(self) -> Metrics:
        """Do what is to be done after the server's step, and say what there is to record of it."""
        return {}

    def _is_evaluated(self, t: int) -> bool:
        return is_evaluated(t, self.evaluate_every, self.rounds, self.evaluate_early)

    def _probabilities(self, clients: Ints) -> Float:
        if self.state.estimator is None:
            raise RuntimeError("a simulation's state always carries its estimator")
        return self.estimator.probabilities(self.state.estimator, clients)

    def save(self, folder: Path) -> None:
        """Write a checkpoint of all that there is between two rounds."""
        self.state.save(folder)

    def client_metrics(self) -> dict[str, Float]:
        """Numbers of each client to be stored with an evaluation, each of shape (N,), beside its accuracy and p̂."""
        return {}

    def _participants(self, t: int) -> Ints:
        """Who takes part; a rule whose server chooses by itself chooses among those who would."""
        last_seen = self.state.last_seen
        clients = self.participation.participants(self.seed, t, last_seen)
        selection = self.rule.selection()
        return clients if selection is None else selection.select(clients, self.seed, t, last_seen)

    def _train(self, t: int, clients: Ints, p: Float) -> Round:
        """Local training as the rule wants it, a second one where it asks for it."""
        updates = self.trainer.updates(self.model, clients, t, self.rule.local(self.state, clients))
        local, second_pass = self.rule.second_pass(self.state, clients), None
        if local is not None:
            updates = np.array(updates)  # an engine may use its array again
            second_pass = self.trainer.updates(self.model, clients, t, local)
        steps, lr = self.trainer.steps_and_lr(clients, t)
        return Round(t, clients, updates, probabilities=p, steps=steps, lr=lr, second_pass=second_pass)

    def _screened(self, round: Round) -> Round:
        """Leave out who sent something that cannot be used: the round of those who did not."""
        clients = np.asarray(round.clients)
        reasons = screen(round.updates)[1]
        if round.second_pass is not None:
            reasons = screen(round.second_pass)[1] | reasons
        for position, reason in sorted(reasons.items()):
            text = "round %d: update of client %d left out: %s"
            _logger.warning(text, round.index, clients[position], reason)
        if not reasons:
            return round
        kept = np.array([position not in reasons for position in range(len(clients))])
        parts: Any = {
            name: getattr(round, name)
            for name in ("clients", "updates", "probabilities", "steps", "second_pass", "ages")
        }
        cut: Any = {name: None if part is None else _where(part, kept) for name, part in parts.items()}
        return replace(round, **cut)

    def _memory_error(self, t: int, model: NDArray[Any]) -> float:
        """H^(t+1) = Σ α_i ‖∇F_i(w_t) − h_i/(η_c K)‖² with the memory after round t (Eq. `hist_deviation`)."""
        everyone = np.arange(self.federation.num_clients)
        steps, lr = self.trainer.steps_and_lr(everyone, t)
        gradients: Float = self.trainer.gradients(model)  # type: ignore[attr-defined]  # looked for at the start
        away = gradients - self.state.memory.rows(everyone) / (lr * steps[:, None])
        return float(self.federation.alpha() @ np.sum(away**2, axis=1))

    def run(self, until: int | None = None) -> str:
        """Run the remaining rounds (or up to round `until`) and say how it ended.

        "finished", "stopped" (by a callback), "diverged" (an update was not finite: the state is that of the
        last good round). Ctrl-C and SIGTERM are heard between two rounds, never in one; they and errors are passed on
        after the callbacks heard of them.
        """
        last = self.rounds if until is None else min(until, self.rounds)
        reason = "finished"
        with postponed("round") as interrupt, self._adding_resume_hints():
            for callback in self.callbacks:
                callback.on_start(self)
            try:
                self._note_coverage()
                while self.state.round < last and not self.stop and not interrupt.asked:
                    record = self.step()
                    for callback in self.callbacks:
                        callback.on_round(self, record)
                reason = "stopped" if self.stop else "finished" if self.state.round >= last else "interrupted"
            except NonFinite:
                reason = "diverged"
            except KeyboardInterrupt:
                reason = "interrupted"
                raise
            except BaseException:
                reason = "failed"
                raise
            finally:
                for callback in self.callbacks:
                    callback.on_end(self, reason)
        if reason == "interrupted":
            raise KeyboardInterrupt
        return reason

    def _note_coverage(self) -> None:
        """Say who never comes; and once, of all clients, that the rule is outside what its paper covers."""
        if self.coverage is not None:
            self.coverage.warn(objective=getattr(self.trainer, "alpha", None) is not None)
        if self.rule.caveat:
            with suppress(ValueError):  # a selection whose probabilities have no closed form
                try:
                    p = self.participation.probabilities()
                except ValueError:  # a schedule without a mean
                    p = self.participation.known(self.state.round)
                p = np.broadcast_to(p, self.federation.num_clients)
                warn_if_uncovered(self.rule.name, self.rule.caveat, p, of_all=True)

    @contextmanager
    def _adding_resume_hints(self) -> Iterator[None]:
        try:
            yield
        except FileTrouble as error:
            for hint in filter(None, (callback.resume_hint() for callback in self.callbacks)):
                error.add_note(hint)
            raise

    def column(self, name: str) -> Float:
        """One metric over all rounds kept so far, NaN where it was not measured."""
        return self.records.column(name)


def _where(rows: Any, kept: NDArray[np.bool_]) -> Any:
    """Some of the rows, which are an array or a list of them."""
    return [rows[k] for k in np.flatnonzero(kept)] if isinstance(rows, list) else rows[kept]


def is_evaluated(t: int, every: int, rounds: int, early: bool = False) -> bool:
    """Whether the model is evaluated after round t.

    Every so many rounds, and after the last one; with `early` also after rounds 1, 2, 4, 8, … until the first of those,
    so that a long run does not keep one waiting.
    """
    done = t + 1
    return done % every == 0 or done == rounds or (early and done < every and done & t == 0)


def before_round(rule: Rule, state: State, t: int, clients: Ints, itemsize: int) -> Metrics:
    """What is known before round t: who comes, how old the memory is, what goes over the wire.

    Parameters
    ----------
    rule, state
        The rule, and its state as it is before the round.
    t
        The round's index.
    clients
        The participants.
    itemsize
        Bytes of one parameter of the model.
    """
    last = state.last_seen
    age = t - last[last >= 0]
    vector = state.federation.num_params * itemsize
    up, down = rule.traffic(state, clients)
    return {
        "participants": float(len(clients)),
        "staleness_mean": float(age.mean()) if age.size else 0.0,
        "staleness_max": float(age.max(initial=0)),
        "bytes_up": float(up * vector),
        "bytes_down": float(down * vector),
    }


def p_error(participation: Participation, t: int, estimated: Float) -> float:
    """Root mean square distance between estimated and true p; NaN where the true one is not known."""
    try:
        true = participation.known(t)
    except ValueError:  # a selection whose probabilities have no closed form
        return float("nan")
    return float(np.sqrt(np.mean((estimated - true) ** 2)))
