"""CA²FL: FedBuff calibrated by the updates that the server has cached.

Wang, Cao, Wu, Chen & Chen, Tackling the data heterogeneity in asynchronous federated learning with cached update
calibration, ICLR 2024, Algorithm 2.

    Δ = Σ_i α_i h_i + (1/|S|) Σ_S (Δ_i − h_i),   then   h_i ← Δ_i for i ∈ S

which is FedVARP's update (Jhunjhunwala et al., UAI 2022) over the replies of a buffer instead of those of a round. The
paper has α_i = 1/N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .stale import FedVARP


@dataclass(frozen=True, kw_only=True)
class CA2FL(FedVARP):
    """FedVARP over the buffer of an asynchronous server."""

    name: ClassVar[str] = "ca2fl"
