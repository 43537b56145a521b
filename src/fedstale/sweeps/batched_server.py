"""ComputeUpdate for R runs at once that have the same participants: the rules as weights.

Every rule here has the form Δ = Σ_S u_i Δ_i + Σ_i c_i h_i, with weights u and c of shape (R,) for each client. They are
those of `fedstale.rules`, which stays the definition: the tests compare the two, round by round. What is special is
that h_i is read only where some run's c_i is not 0: for clients that always come, α_i − α_i/p_i = 0, and they are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .. import beta as betas
from .. import theta as thetas
from ..beta import AutoPerClient, common, shrunk, term_weights, with_terms
from ..checks import Float
from ..federation import Ints
from ..rules import MIFA, FedAvg, FedStale, FedVARP, Rule, TemperedFedStale, UnbiasedFedAvg, UnbiasedFedVARP

_AUTO, _PER_CLIENT = betas.Auto(), betas.AutoPerClient()
_AUTO_THETA = thetas.AutoTheta()
_ONE_OVER_P, _NOTHING = thetas.ConstantTheta(1.0), betas.Constant(0.0)


@dataclass(frozen=True)
class _Weights:
    """A rule as weights: u_i = α_i/p_i^θ, or the mean of those who came; c_i = β α_i, less β u_i for those who came."""

    mean: bool = False
    theta: thetas.Theta = _ONE_OVER_P
    beta: betas.Beta = _NOTHING
    refresh: float = 1.0
    """of the memory: h_i ← h_i + max(1/visits_i, refresh) (Δ_i − h_i)"""
    remembers: bool = True
    stand_in: bool = False
    """whether others stand in for all who have not come yet"""
    reports: tuple[str, ...] = ()
    """which of "beta" and "theta" are told with the metrics"""


def _weights_of(rule: Rule) -> _Weights | None:
    """Return a rule as weights; None for any other, and for a β or θ that is not one of those above."""
    one = betas.Constant(1.0)
    if type(rule) is FedAvg:
        return _Weights(mean=True, remembers=False)
    if type(rule) is UnbiasedFedAvg:
        return _Weights(remembers=False)
    if type(rule) is FedVARP:
        return _Weights(mean=True, beta=one)
    if type(rule) is MIFA:
        return _Weights(theta=thetas.ConstantTheta(0.0), beta=one)
    if type(rule) in (FedStale, UnbiasedFedVARP) and isinstance(rule, FedStale):
        beta = betas.make(rule.beta)
        known = isinstance(beta, betas.Constant) or beta in (_AUTO, _PER_CLIENT)
        return _Weights(beta=beta, reports=("beta",)) if known else None
    if type(rule) is TemperedFedStale and not rule.self_normalised:
        beta, theta = betas.make(rule.beta), thetas.make(rule.theta)
        known = isinstance(beta, betas.Constant) and (isinstance(theta, thetas.ConstantTheta) or theta == _AUTO_THETA)
        tempered = _Weights(False, theta, beta, rule.refresh, True, rule.stand_in, ("beta", "theta"))
        return tempered if known else None
    return None


def supports(rule: Rule) -> bool:
    """Whether a rule can run in a batch."""
    return _weights_of(rule) is not None


@dataclass
class BatchedServer:
    """The server's state of R runs.

    Parameters
    ----------
    rules
        Of each run, such that `supports` says yes.
    alpha
        α_i, shape (N,).
    num_params
        Number of parameters d.
    """

    rules: Sequence[Rule]
    alpha: Float
    num_params: int
    sums: Float = field(init=False)
    reported: dict[str, Float] = field(init=False)
    """what each run's rule would tell of the last round, shape (R,); NaN for a rule that has no such thing"""

    def __post_init__(self) -> None:
        n, found = len(self.alpha), [_weights_of(rule) for rule in self.rules]
        plans = [plan for plan in found if plan is not None]
        if len(plans) < len(found):
            raise ValueError(f"{[rule.name for rule in self.rules]}: not all of them can run in a batch")
        self._plans, count = plans, len(plans)
        self._mean = np.array([plan.mean for plan in plans])
        self._auto = np.flatnonzero([plan.beta == _AUTO for plan in plans])
        self._own = np.flatnonzero([plan.beta == _PER_CLIENT for plan in plans])
        self._learning = np.concatenate([self._auto, self._own])
        fixed = [plan.beta.beta if isinstance(plan.beta, betas.Constant) else 0.0 for plan in plans]
        # One β per run and client; all of a row are equal unless the run has its own for every client.
        self._beta = np.repeat(np.array(fixed)[:, None], n, axis=1)
        self.sums = np.zeros((2, count))
        self._own_inner, self._own_norm, self._own_count = np.zeros((3, len(self._own), n))
        self._tempering = np.flatnonzero([plan.theta == _AUTO_THETA for plan in plans])
        start = _AUTO_THETA.start
        self._theta = np.array([p.theta.theta if isinstance(p.theta, thetas.ConstantTheta) else start for p in plans])
        self._columns = _AUTO_THETA.columns(self.num_params)
        shape = (len(self._tempering), len(thetas.CANDIDATES))
        self._costs, self._lasting = np.zeros((2, *shape)), np.zeros((*shape, len(self._columns)))
        self._absence = np.zeros((len(self._tempering), 2))
        self._averaging = np.flatnonzero([plan.refresh < 1.0 for plan in plans])
        self._refresh = np.array([plans[r].refresh for r in self._averaging])
        self._visits = np.zeros(n, dtype=np.int64)
        self._stand_in = np.array([plan.stand_in for plan in plans])[:, None]
        self.reported = {}
        remembers = np.array([plan.remembers for plan in plans])
        self._remembers = bool(remembers.any())
        self._mask = remembers[:, None].astype(np.float64)
        self._memory: dict[int, Tensor] = {}
        self._spare: list[Tensor] = []

    @property
    def num_runs(self) -> int:
        """Number of runs R."""
        return len(self.rules)

    def room(self) -> Tensor:
        """Return a place for one client's updates, shape (R, d): `combine` keeps it, or hands it out again."""
        return self._spare.pop() if self._spare else torch.empty(self.num_runs, self.num_params)

    def combine(self, t: int, clients: Ints, updates: Sequence[Tensor], p: Float) -> Tensor:
        """Compute the R global updates, shape (R, d), and remember the round.

        Parameters
        ----------
        t
            The round's index.
        clients
            The participants S of every run.
        updates
            For each of them the R updates, shape (R, d); they belong to the server from now on.
        p
            Their probabilities in each run, shape (R, |S|).
        """
        fresh, stale = self._weights(clients, p)
        delta = torch.zeros(self.num_runs, self.num_params)
        for update, weight in zip(updates, fresh.T, strict=True):
            delta.addcmul_(update, _column(weight))
        for client, row in self._memory.items():
            if stale[:, client].any():
                delta.addcmul_(row, _column(stale[:, client]))
        self._learn(t, clients, updates, p)
        self._temper(t, clients, updates, p)
        self._visits[clients] += 1
        for client, update in zip(clients.tolist(), updates, strict=True):
            if self._remembers:
                old = self._memory.get(client)
                if old is not None:
                    self._average(client, old, update)
                    self._spare.append(old)
                self._memory[client] = update
            else:
                self._spare.append(update)
        return delta

    def _average(self, client: int, old: Tensor, update: Tensor) -> None:
        """h_i + max(1/visits_i, refresh) (Δ_i − h_i) in place of Δ_i, in the runs whose memory is a running mean."""
        if len(self._averaging):
            runs = torch.from_numpy(self._averaging)
            rates = _column(np.maximum(1.0 / self._visits[client], self._refresh))
            update.index_copy_(0, runs, torch.lerp(old.index_select(0, runs), update.index_select(0, runs), rates))

    def _weights(self, clients: Ints, p: Float) -> tuple[Float, Float]:
        """Return u, shape (R, |S|), and c, shape (R, N), of the module's docstring."""
        alpha = self.alpha[clients]
        total = alpha.sum()
        mean = alpha / total if total > 0 else np.zeros(len(alpha))
        fresh = np.where(self._mean[:, None], mean, alpha / p ** self._theta[:, None])
        stale = self._beta * self.alpha
        if self._stand_in.any():
            fresh, stale = self._with_stand_ins(clients, alpha / p, fresh, stale)
        stale[:, clients] -= self._beta[:, clients] * fresh
        self._report(clients)
        return fresh, stale * self._mask

    def _with_stand_ins(self, clients: Ints, one_over_p: Float, fresh: Float, stale: Float) -> tuple[Float, Float]:
        """Do what `TemperedFedStale.stand_in` does."""
        came, new = float(self.alpha[self._visits > 0].sum()), self._visits[clients] == 0
        total = one_over_p[:, new].sum(axis=1, keepdims=True)
        if (total > 0).any():  # in one run or in all: it depends on α alone
            return np.where(self._stand_in & new, one_over_p * ((1.0 - came) / total), fresh), stale
        return fresh, np.where(self._stand_in, stale / came, stale) if came > 0 else stale

    def _report(self, clients: Ints) -> None:
        beta = self._beta[:, 0].copy()
        if len(self._own):
            own = self._beta[np.ix_(self._own, clients)]
            beta[self._own] = own.mean(axis=1) if len(clients) else self._common(self._own)
        for name, values in (("beta", beta), ("theta", self._theta)):
            told = np.array([name in plan.reports for plan in self._plans])
            self.reported[name] = np.where(told, values, np.nan)

    def _common(self, runs: Ints) -> Float:
        """Return β̂ of `beta.Auto` in some runs."""
        return common(self.sums[:, runs], AutoPerClient.start)

    def _learn(self, t: int, clients: Ints, updates: Sequence[Tensor], p: Float) -> None:
        """Do what `beta.Auto.observe` and `beta.AutoPerClient.observe` do."""
        if not len(self._learning) or not len(clients):
            return
        inner = np.zeros((len(self._learning), len(clients)))
        square, fresh = np.zeros_like(inner), np.zeros_like(inner)
        own = len(self._auto)
        some = torch.from_numpy(self._learning)
        p = p[self._learning]
        for k, (client, update) in enumerate(zip(clients.tolist(), updates, strict=True)):
            # A client that always comes says nothing to the common β; only a β_i of its own wants to know it.
            if not len(self._own) and (p[:, k] == 1.0).all():
                continue
            row, u = self._memory.get(client), update.index_select(0, some).double()
            if row is not None:
                h = row.index_select(0, some).double()
                inner[:, k] = torch.linalg.vecdot(u, h).numpy()
                square[:, k] = torch.linalg.vecdot(h, h).numpy()
            if not square[:, k].all():
                fresh[:, k] = torch.linalg.vecdot(u, u).numpy()
        weight, new = term_weights(self.alpha[clients], p, t), square == 0
        terms = np.where(new, AutoPerClient.start * fresh, inner), np.where(new, fresh, square)
        self.sums[:, self._learning] = with_terms(self.sums[:, self._learning], weight, *terms)
        self._beta[self._auto] = self._common(self._auto)[:, None]
        if len(self._own):
            self._learn_own(t, clients, inner[own:], square[own:])

    def _learn_own(self, t: int, clients: Ints, inner: Float, square: Float) -> None:
        keep = np.isfinite(np.concatenate([inner, square], axis=1)).all(axis=1, keepdims=True)
        self._own_inner[:, clients] += np.where(keep, (t + 1) * inner, 0.0)
        self._own_norm[:, clients] += np.where(keep, (t + 1) * square, 0.0)
        self._own_count[:, clients] += keep & (square > 0)
        value = shrunk(
            self._own_inner[:, clients],
            self._own_norm[:, clients],
            self._own_count[:, clients],
            self._common(self._own)[:, None],
            AutoPerClient.prior,
        )
        place = np.ix_(self._own, clients)
        self._beta[place] = np.where(keep, value, self._beta[place])

    def _temper(self, t: int, clients: Ints, updates: Sequence[Tensor], p: Float) -> None:
        """Do what `theta.AutoTheta.observe` does."""
        runs = self._tempering
        if not len(runs):
            return
        again = np.flatnonzero((self._visits[clients] > 0) & (p[runs] < 1.0).any(axis=0))
        residuals = np.zeros((len(runs), len(again), len(self._columns)))
        which, columns = torch.from_numpy(runs), torch.from_numpy(self._columns.copy())
        for j, k in enumerate(again):
            old = self._memory[int(clients[k])].index_select(0, which).index_select(1, columns).double().numpy()
            new = updates[int(k)].index_select(0, which).index_select(1, columns).double().numpy()
            residuals[:, j] = new - self._beta[runs, :1] * old
        chances = p[np.ix_(runs, again)]
        with np.errstate(over="ignore", invalid="ignore"):
            terms = thetas.costs(t, self.alpha[clients[again]], chances, residuals, self._lasting, self._absence)
        for r, (bias, noise, lasting, absence) in enumerate(zip(*terms, strict=True)):
            if thetas.finite(bias, noise, lasting, absence):
                self._costs[:, r] += np.stack([bias, noise])
                self._lasting[r], self._absence[r] = lasting, absence
        self._theta[runs] = thetas.least_cost_theta(self._costs[0], self._costs[1], _AUTO_THETA.start)


def _column(weights: Float) -> Tensor:
    return torch.from_numpy(weights.astype(np.float32)).view(-1, 1)
