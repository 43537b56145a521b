"""What a rule remembers: declared in one place, saved whole, nested to any depth, and nowhere else."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import fedstale as fs
from fedstale import rules
from fedstale.checks import Float
from fedstale.federation import Ints
from fedstale.memory import StaleMemory
from fedstale.rule_state import MemoryState, RuleState, held_by_clients, per_client
from fedstale.tensor_file import read_tensors, write_tensors
from tests.everything import everything

from .test_every_rule import RULES, D, N, advance, every_rule, start

WRAPPERS: dict[str, Any] = {
    **rules.OPTIMIZERS,
    "guard": lambda rule: rules.Guarded(rule, max_weight=7.0) if not isinstance(rule, rules.Guarded) else rule,
}
INSIDE: dict[str, Any] = {
    "auto": fs.FedStale(),
    "own": fs.FedStale(beta="auto-per-client"),
    "scaffold": rules.Scaffold(),
    "sarah": rules.SARAH(period=3),
    "mifa-wait": rules.WaitingMIFA(),
    "afa-cs": rules.AFACS(max_delay=2),
}


@settings(max_examples=25, deadline=None)
@given(inside=st.sampled_from(sorted(INSIDE)), around=st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=4))
def test_wrappers_nest_and_resume_with_the_same_bits(
    inside: str, around: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rule: fs.Rule = INSIDE[inside]
    for name in around:
        rule = WRAPPERS[name](rule)
    folder = tmp_path_factory.mktemp("nested")
    whole, state = start(rule), start(rule, f"disk:{folder / 'rows'}")
    expected, got = advance(rule, whole, 0, 14), advance(rule, state, 0, 6)
    state.save(folder / "checkpoint")
    state.close()
    state = fs.State.load(folder / "checkpoint")
    got += advance(rule, state, 6, 14)
    assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))
    assert everything(whole) == everything(state)
    state.close()


def test_a_nested_optimizer_is_one_around_the_other() -> None:
    """ServerAdam(ServerMomentum(FedAvg)): Adam is given the momentum's m, round by round."""
    outer = rules.ServerAdam(rules.ServerMomentum(fs.FedAvg(), beta1=0.5))
    state = outer.init(fs.Federation(2, 3), model=np.zeros(3))
    m, first, second = np.zeros(3), np.zeros(3), np.full(3, 1e-6)
    for t in range(5):
        updates = np.random.default_rng(t).normal(size=(2, 3))
        m = 0.5 * m + updates.mean(axis=0)
        first, second = 0.9 * first + 0.1 * m, 0.99 * second + 0.01 * m**2
        assert outer.combine(state, fs.Round(t, [0, 1], updates)) == pytest.approx(first / (np.sqrt(second) + 1e-3))
    assert sorted(state.of_rule.arrays()) == ["inner/m", "m", "v"]


@every_rule
def test_a_rule_hides_nothing_in_itself(rule: fs.Rule) -> None:
    """A rule is the same object before and after a run, and a copy of it can take over at any round."""
    before = pickle.dumps(rule)
    whole, relay = start(rule), start(rule)
    advance(rule, whole, 0, 12)
    assert pickle.dumps(rule) == before
    for t in range(12):
        advance(pickle.loads(before), relay, t, t + 1)
    assert everything(whole) == everything(relay)
    with pytest.raises(AttributeError):
        rule.remembered = 1  # type: ignore[attr-defined]


@every_rule
def test_a_state_takes_only_what_it_declares(rule: fs.Rule) -> None:
    state = start(rule)
    with pytest.raises(AttributeError, match="declare what the rule remembers"):
        state.of_rule.hidden = 1.0  # type: ignore[attr-defined]


@every_rule
def test_joining_clients_grow_what_is_kept_of_each(rule: fs.Rule, tmp_path: Path) -> None:
    """Whatever had one entry or row per client has one for each that joined, and the checkpoint has them, too."""
    state = start(rule)
    advance(rule, state, 0, 8)
    before = state.of_rule.arrays()
    state.grow(N + 3)
    for path, array in state.of_rule.arrays().items():
        if before[path].shape[:1] == (N,):
            assert array.shape == (N + 3, *before[path].shape[1:])
            assert np.array_equal(array[:N], before[path])
        else:
            assert np.array_equal(array, before[path])
    assert all(memory.num_clients == N + 3 for memory in state.of_rule.memories().values())
    state.save(tmp_path)
    assert everything(fs.State.load(tmp_path)) == everything(state)


@dataclass(eq=False, kw_only=True)
class OddState(MemoryState):
    anything: Any
    number: float
    count: int
    flag: bool
    nothing: Float | None = None
    visits: Ints = per_client(fill=-3)
    theirs: StaleMemory = held_by_clients()
    inner: RuleState | None = None


@dataclass(frozen=True, kw_only=True)
class Odd(fs.FedAvg):
    name: ClassVar[str] = "odd"


def odd(state: fs.State, depth: int = 0, **values: Any) -> OddState:
    made: dict[str, Any] = {"anything": np.zeros(()), "number": 0.0, "count": 0, "flag": False} | values
    inner = odd(state, depth - 1, **values) if depth else None
    visits = np.arange(state.federation.num_clients)
    return OddState(stale=state.remember(), theirs=state.remember("theirs"), visits=visits, inner=inner, **made)


@settings(max_examples=40, deadline=None)
@given(
    anything=arrays.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_]), arrays.array_shapes(min_dims=0)
    ),
    number=st.floats(),
    count=st.integers(-(2**63), 2**63 - 1),
    flag=st.booleans(),
    depth=st.integers(0, 5),
)
def test_any_state_round_trips(
    anything: Any, number: float, count: int, flag: bool, depth: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    state = Odd().init(fs.Federation(N, D))
    state.of_rule = odd(state, depth, anything=anything, number=number, count=count, flag=flag)
    for k, memory in enumerate(state.of_rule.memories().values()):
        memory.replace([k % N], np.full((1, D), float(k)))
    state.save(folder)
    loaded = fs.State.load(folder)
    assert everything(loaded) == everything(state)
    found: Any = loaded.of_rule
    for _ in range(depth + 1):
        assert isinstance(found, OddState)
        assert (type(found.count), type(found.flag), type(found.number)) == (int, bool, float)
        assert found.nothing is None
        found = found.inner
    assert found is None
    loaded.grow(N + 1)
    assert loaded.own(OddState).visits[-1] == -3


def test_what_clients_hold_is_not_the_servers() -> None:
    state = Odd().init(fs.Federation(N, D))
    state.of_rule = own = odd(state)
    before = state.nbytes
    own.theirs.replace([0, 1], np.ones((2, D)), masses=0.0)
    assert state.nbytes == before
    own.theirs.replace([0, 1], np.ones((2, D)))
    assert state.nbytes == before + D * 8  # a sum that their rows count in is the server's
    own.stale.replace([0, 1], np.ones((2, D)))
    assert state.nbytes == before + D * 8 + 2 * D * 4


@pytest.mark.parametrize("memory", ["ram", "disk:{}"])
def test_memories_of_the_same_name_do_not_share_a_file(memory: str, tmp_path: Path) -> None:
    state = Odd().init(fs.Federation(N, D), memory=memory.format(tmp_path / "rows"))
    state.of_rule = odd(state, depth=1)
    state.memory.replace([0], np.ones((1, D)))
    assert not state.of_rule.memories()["inner/stale"].rows([0]).any()
    state.save(tmp_path / "checkpoint")
    before = everything(state)
    state.close()
    assert len(list(tmp_path.rglob("*.rows"))) == 4
    assert everything(fs.State.load(tmp_path / "checkpoint")) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class": "NoSuchState"}, "NoSuchState, which is not defined in this process: import the module"),
        ({"fields": {}}, "AutoState with other fields"),
        ({"fields": {"sums": "array", "more": None}}, "AutoState with other fields"),
        ({"class": "State"}, "not defined in this process"),
    ],
)
def test_a_checkpoint_of_an_unknown_state_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    state = start(fs.FedStale())
    state.save(tmp_path)
    tensors, about = read_tensors(tmp_path / "state.safetensors")
    about["of_rule"]["fields"]["beta"] |= change
    write_tensors(tmp_path / "state.safetensors", tensors, about)
    with pytest.raises(fs.InvalidInput, match=message):
        fs.State.load(tmp_path)


def test_entries_per_client_must_be_as_many_as_clients(tmp_path: Path) -> None:
    start(fs.FedStale(beta="theory")).save(tmp_path)
    tensors, about = read_tensors(tmp_path / "state.safetensors")
    write_tensors(tmp_path / "state.safetensors", tensors | {"rule/beta/p": np.zeros(N - 1)}, about)
    with pytest.raises(fs.InvalidInput, match="beta/p has shape"):
        fs.State.load(tmp_path)


@pytest.mark.parametrize(("made", "used"), [(0.5, "auto"), ("auto", "auto-per-client"), ("auto-per-client", "auto")])
def test_another_beta_does_not_take_over_a_state_that_it_cannot_read(made: Any, used: Any) -> None:
    """The sums of "auto-per-client" are weighted by β_i: another β went on with them, and was wrong."""
    state = start(fs.FedStale(beta=made))
    advance(fs.FedStale(beta=made), state, 0, 4)
    before = everything(state)
    of_all = {True: "a β for each client", False: "one β for all clients"}[made == "auto-per-client"]
    with pytest.raises(
        fs.InvalidInput, match=rf"^beta = '{used}': the state was made with {of_all}, and|other options"
    ):
        advance(fs.FedStale(beta=used), state, 4, 5)
    assert everything(state) == before


def test_the_name_of_a_state_of_the_library_is_taken() -> None:
    with pytest.raises(TypeError, match="AutoState is the name of a state of"):
        type("AutoState", (RuleState,), {})


@pytest.mark.parametrize("value", ["text", [1.0], {"a": 1.0}, object()])
def test_only_arrays_numbers_memories_and_states_are_remembered(value: Any) -> None:
    own = start(fs.FedStale()).own(rules.stale.StaleState)
    with pytest.raises(TypeError, match="must be an array, a number, a memory"):
        own.beta = value


def test_every_rule_of_the_library_says_what_it_remembers() -> None:
    """A class of state is declared beside the rule: no rule keeps things in a state that another declares for it."""
    for rule in RULES:
        kind = type(rule.start(fs.State(fs.Federation(N, D), rule.name)))
        assert kind.__module__.startswith("fedstale.")
        assert kind.__doc__
