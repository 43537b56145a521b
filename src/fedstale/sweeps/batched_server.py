"""ComputeUpdate (Eq. 2, 5, 7, 8–9) for R runs at once that have the same participants: the rules as weights.

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

from ..beta import AutoPerClient, common, shrunk, term_weights, with_terms
from ..checks import Float
from ..configs import Config
from ..federation import Ints

RULES = ("fedavg", "u-fedavg", "fedvarp", "u-fedvarp", "fedstale")
_AUTO, _PER_CLIENT = "auto", "auto-per-client"


def supports(rule: Config, beta: Config) -> bool:
    """Whether a rule with this β can run in a batch."""
    if rule != "fedstale":
        return rule in RULES and beta is None
    return beta is None or (isinstance(beta, (int, float, str)) and (beta in (_AUTO, _PER_CLIENT) or _is_number(beta)))


def _is_number(beta: float | str) -> bool:
    try:
        return 0.0 <= float(beta) <= 1.0
    except ValueError:
        return False


@dataclass
class BatchedServer:
    """The server's state of R runs.

    Parameters
    ----------
    rules, betas
        Of each run: a name, and for "fedstale" a number, "auto" (also None) or "auto-per-client".
    alpha
        α_i, shape (N,).
    num_params
        Number of parameters d.
    """

    rules: Sequence[Config]
    betas: Sequence[Config]
    alpha: Float
    num_params: int
    sums: Float = field(init=False)
    reported: Float = field(init=False)

    def __post_init__(self) -> None:
        count, n = len(self.rules), len(self.alpha)
        kinds = [_AUTO if b is None and r == "fedstale" else b for r, b in zip(self.rules, self.betas, strict=True)]
        self._is = {name: np.array([rule == name for rule in self.rules]) for name in RULES}
        self._stale = self._is["fedstale"] | self._is["u-fedvarp"]
        self._auto = np.flatnonzero([kind == _AUTO for kind in kinds])
        self._own = np.flatnonzero([kind == _PER_CLIENT for kind in kinds])
        self._learning = np.concatenate([self._auto, self._own])
        learns = set(self._learning.tolist())
        fixed = [0.0 if r in learns or kinds[r] is None else float(kinds[r] or 0.0) for r in range(count)]
        # One β per run and client; all of a row are equal unless the run has its own for every client.
        self._beta = np.repeat(np.where(self._is["u-fedvarp"], 1.0, np.array(fixed))[:, None], n, axis=1)
        self.sums = np.zeros((2, count))
        self._own_inner, self._own_norm, self._own_count = np.zeros((3, len(self._own), n))
        self.reported = np.full(count, np.nan)
        remembers = self._stale | self._is["fedvarp"]
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
        for client, update in zip(clients.tolist(), updates, strict=True):
            if self._remembers:
                old = self._memory.get(client)
                self._memory[client] = update
                if old is not None:
                    self._spare.append(old)
            else:
                self._spare.append(update)
        return delta

    def _weights(self, clients: Ints, p: Float) -> tuple[Float, Float]:
        """Return u, shape (R, |S|), and c, shape (R, N), of the module's docstring."""
        alpha = self.alpha[clients]
        total = alpha.sum()
        mean = alpha / total if total > 0 else np.zeros(len(alpha))
        biased = (self._is["fedavg"] | self._is["fedvarp"])[:, None]
        fresh = np.where(biased, mean, alpha / p)
        beta = np.where(self._is["fedvarp"][:, None], 1.0, self._beta)
        stale = beta * self.alpha
        stale[:, clients] -= beta[:, clients] * fresh
        self._report(clients)
        return fresh, stale * self._mask

    def _report(self, clients: Ints) -> None:
        self.reported = np.where(self._stale, self._beta[:, 0], np.nan)
        if len(self._own):
            own = self._beta[np.ix_(self._own, clients)]
            self.reported[self._own] = own.mean(axis=1) if len(clients) else self._common(self._own)

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
        own_betas = np.ix_(self._own, clients)
        self._beta[own_betas] = np.where(keep, value, self._beta[own_betas])


def _column(weights: Float) -> Tensor:
    return torch.from_numpy(weights.astype(np.float32)).view(-1, 1)
