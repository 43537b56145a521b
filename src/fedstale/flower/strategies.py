"""The strategies by name: one import and one line in a server_app that uses Flower's FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from .. import rules
from ..beta import Beta
from ..theta import Theta
from .options import Options, in_order
from .strategy import RuleStrategy


class TemperedFedStale(RuleStrategy):
    """The tempered family: FedStale with less noise, and nothing to choose. The one to begin with.

    Parameters
    ----------
    beta, theta, refresh, stand_in
        Of the rule, `fedstale.TemperedFedStale`; the defaults are those that the figures were measured with.
    server_lr
        η_s.
    *positional, **options
        See `RuleStrategy`; without names, those of Flower's FedAvg in its order.
    """

    def __init__(
        self,
        *positional: Any,
        beta: float | str | Beta | Mapping[int, float] | Callable[[int], float] = 1.0,
        theta: float | str | Theta = "auto",
        refresh: float = 0.5,
        stand_in: bool = True,
        server_lr: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        rule = rules.TemperedFedStale(beta=beta, theta=theta, refresh=refresh, stand_in=stand_in, server_lr=server_lr)
        super().__init__(rule, **in_order(positional, options))


class FedStale(RuleStrategy):
    """FedStale (Eq. 8–9): fresh updates and stale ones, mixed without bias.

    Parameters
    ----------
    beta
        How much to trust stale updates: "auto" (default), "auto-per-client", "theory", a number in [0, 1], …
    server_lr
        η_s.
    *positional, **options
        See `RuleStrategy`; without names, those of Flower's FedAvg in its order.
    """

    def __init__(
        self,
        *positional: Any,
        beta: float | str | Beta | Mapping[int, float] | Callable[[int], float] = "auto",
        server_lr: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(rules.FedStale(beta=beta, server_lr=server_lr), **in_order(positional, options))


class UnbiasedFedVARP(RuleStrategy):
    """FedVARP with the weights 1/p_i that make it unbiased (U-FedVARP, Eq. 7): FedStale with β = 1.

    The original, which is biased when clients come with different frequencies, is
    `RuleStrategy(fedstale.FedVARP())`.

    Parameters
    ----------
    server_lr
        η_s.
    *positional, **options
        See `RuleStrategy`; without names, those of Flower's FedAvg in its order.
    """

    def __init__(self, *positional: Any, server_lr: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(rules.UnbiasedFedVARP(server_lr=server_lr), **in_order(positional, options))


class UnbiasedFedAvg(RuleStrategy):
    """Unbiased FedAvg (Eq. 5): who comes seldom weighs more; no memory.

    Parameters
    ----------
    server_lr
        η_s.
    *positional, **options
        See `RuleStrategy`; without names, those of Flower's FedAvg in its order.
    """

    def __init__(self, *positional: Any, server_lr: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(rules.UnbiasedFedAvg(server_lr=server_lr), **in_order(positional, options))
