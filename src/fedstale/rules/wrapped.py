"""What a rule around another rule is: it asks the clients for the same, and changes what goes in or comes out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..checks import Float
from ..federation import CheckedRound, Ints
from ..memory.held import Announcement
from ..participation import Selection
from ..rule_state import RuleState
from ..state import State
from .averaging import FedAvg
from .base import Local, Rule

_INHERITED = (
    *("memory", "per_step", "takes_late", "reads_once", "asynchronous", "answers_with_model"),
    *("upload", "download", "client_memory", "caveat"),
)


@dataclass(frozen=True, kw_only=True)
class WrappedRule(Rule):
    """A rule that wraps one; wrappers may be wrapped, to any depth.

    Parameters
    ----------
    rule
        The rule inside.
    """

    rule: Rule = field(default=FedAvg(), kw_only=False)

    def adopt(self) -> None:
        """Take over what the rule inside says about itself."""
        for name in _INHERITED:
            object.__setattr__(self, name, getattr(self.rule, name))

    @property
    def innermost(self) -> Rule:
        """The rule inside all wrappers."""
        return self.rule.innermost if isinstance(self.rule, WrappedRule) else self.rule

    def inside(self, state: State) -> State:
        """Return the state as the rule inside sees it; a wrapper that remembers nothing itself shares it."""
        return state

    def start(self, state: State) -> RuleState:
        """As the rule."""
        return self.rule.start(state)

    def announce(self, state: State, index: int, clients: Ints, probabilities: Float) -> Announcement:
        """As the rule."""
        return self.rule.announce(self.inside(state), index, clients, probabilities)

    def local(self, state: State, clients: Ints) -> Local | None:
        """As the rule."""
        return self.rule.local(self.inside(state), clients)

    def second_pass(self, state: State, clients: Ints) -> Local | None:
        """As the rule."""
        return self.rule.second_pass(self.inside(state), clients)

    def take_late(self, state: State, late: CheckedRound) -> None:
        """As the rule."""
        self.rule.take_late(self.inside(state), late)

    def on_clock(self) -> Rule:
        """The same wrapper around the rule on a clock."""
        inner = self.rule.on_clock()
        return self if inner is self.rule else replace(self, rule=inner)

    def selection(self) -> Selection | None:
        """As the rule."""
        return self.rule.selection()

    def traffic(self, state: State, clients: Ints) -> tuple[int, int]:
        """As the rule."""
        return self.rule.traffic(self.inside(state), clients)
