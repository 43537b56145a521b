"""What a rule around another rule is: it asks the clients for the same, and combines with what the inner one says."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..federation import Ints
from ..participation import Selection
from ..rule_state import RuleState
from ..state import State
from .averaging import FedAvg
from .base import Local, Rule

OF_THE_RULE = ("memory", "upload", "download", "client_memory", "changes_clients", "caveat")


@dataclass(frozen=True, kw_only=True)
class Around(Rule):
    """A rule that wraps one; wrappers may be wrapped, to any depth.

    Parameters
    ----------
    rule
        The rule inside.
    """

    rule: Rule = field(default=FedAvg(), kw_only=False)

    def adopt(self) -> None:
        """Take over what the rule inside says about itself."""
        for name in OF_THE_RULE:
            object.__setattr__(self, name, getattr(self.rule, name))

    def inside(self, state: State) -> State:
        """Return the state as the rule inside sees it; a wrapper that remembers nothing itself shares it."""
        return state

    def start(self, state: State) -> RuleState:
        """As the rule."""
        return self.rule.start(state)

    def local(self, state: State, clients: Ints) -> Local | None:
        """As the rule."""
        return self.rule.local(self.inside(state), clients)

    def again(self, state: State, clients: Ints) -> Local | None:
        """As the rule."""
        return self.rule.again(self.inside(state), clients)

    def selection(self) -> Selection | None:
        """As the rule."""
        return self.rule.selection()

    def traffic(self, state: State, clients: Ints) -> tuple[int, int]:
        """As the rule."""
        return self.rule.traffic(self.inside(state), clients)
