"""FedProx: local training that stays near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, Federated optimization in heterogeneous networks, MLSys 2020.

    local gradient + μ (w − w_t),   Δ = (1/|S|) Σ_S Δ_i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..checks import number
from ..federation import Ints
from ..state import State
from .averaging import FedAvg
from .base import Local


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term at the clients.

    Parameters
    ----------
    mu
        μ; the paper tries 0.001 to 1.
    """

    mu: float = 0.1

    name: ClassVar[str] = "fedprox"

    def __post_init__(self) -> None:
        super().__post_init__()
        number("mu", self.mu, 0.0)

    def local(self, state: State, clients: Ints) -> Local | None:
        """The proximal term."""
        return Local(prox=self.mu)
