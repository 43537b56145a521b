"""Random mutations of a valid reply and of a valid round: `python -m tests.faults.hostile --mutations 100000`.

**Flower.** Two strategies go side by side. To the first comes, beside three good replies, one that was mutated; to the
second the same without it. Where the first left the reply out, the two must stay equal, bit for bit: model, memory, p̂,
β, buffers. Where it took it, the arrays must be sound by an independent reading, and the second is given a clean copy
of them: the two must be equal again. Every round must be accounted for, nothing may raise, and what is saved now and
then must be read back equal.

**Rule.** A round of FedStale is mutated: either it is refused with `InvalidInput` and the state is what it was, bit for
bit, or the update is finite; and whatever came before, a valid round is applied.
"""

from __future__ import annotations

import argparse
import io
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from numpy.random import Generator

import fedstale as fs
from fedstale.flower import FedStale, RuleStrategy, TemperedFedStale, checkpoint_file
from tests.everything import everything
from tests.flower.grid import MemoryGrid, Model, Trainer, record

from .task import flower_task

GOOD = {1000 + client: Trainer(client) for client in range(3)}
BAD = 1666
NAME = 9
WEIRD: list[Any] = [0, -1, 1, 2**31, 2**63 - 1, 0.0, -0.5, 1e300, float("nan"), float("inf"), [], [1, 2], [1.5]]
TEXTS = ["", "x", "7\n[ERROR] forged line", "\x1b[31mred", "é" * 500, "\ud800", "client-id:0", "../../etc/passwd"]


def first_model() -> Model:
    """Parameters, a scalar, running statistics, a counter and a mask."""
    chance = np.random.default_rng(0)
    return {
        "weight": chance.standard_normal((4, 3)).astype("f4"),
        "bias": chance.standard_normal(4).astype("f4"),
        "scale": np.asarray(1.5, "f4"),
        "bn.running_var": np.full(3, 0.5, "f4"),
        "bn.num_batches_tracked": np.asarray(7, "i8"),
        "mask": np.array([True, False]),
    }


def _bytes(array: Array, chance: Generator) -> bytes:
    """Damage the bytes of an array: flip, cut, extend, or write another header."""
    data = bytearray(array.data)
    what = chance.integers(6)
    if what == 0:
        for place in chance.integers(len(data), size=chance.integers(1, 9)):
            data[place] ^= 1 << int(chance.integers(8))
    elif what == 1:
        del data[int(chance.integers(len(data))) :]
    elif what == 2:
        data += chance.bytes(int(chance.integers(1, 200)))
    elif what == 3:  # the header only
        for place in chance.integers(6, 100, size=chance.integers(1, 30)):
            data[place % len(data)] = int(chance.integers(256))
    elif what == 4:
        return chance.bytes(int(chance.integers(0, 300)))
    else:
        shape = str(
            chance.choice(["(-1,)", "(-1, -1)", "(10**18,)", "(1000000000000000000,)", "()", "(0,)", "(((((", "4"])
        )
        kind = str(chance.choice(["<f4", ">f4", "|O", "<c8", "|S4", "<M8[s]", "|V0", "<f2", "<f8", "<i8", "|b1"]))
        header = f"{{'descr': '{kind}', 'fortran_order': {chance.choice(['True', 'False', '0'])}, 'shape': {shape}, }}"
        body = header.encode().ljust(117) + b"\n"
        return (
            b"\x93NUMPY"
            + bytes([int(chance.choice([1, 1, 2, 3, 9])), 0])
            + len(body).to_bytes(2, "little")
            + body
            + bytes(data[128:])
        )
    return bytes(data)


def _values(model: Model, name: str, chance: Generator) -> None:
    array = np.array(model[name])
    if array.size and array.dtype.kind == "f":
        place = int(chance.integers(array.size))
        array.reshape(-1)[place] = chance.choice([np.nan, np.inf, -np.inf, 3e38, -1e31, 1e29, 1e-45, -1.0])
        model[name] = array
    else:
        model[name] = np.asarray(chance.choice([2**62, -(2**62), 0, 1]), array.dtype) if array.ndim == 0 else ~array


def _shape(model: Model, name: str, chance: Generator) -> None:
    array = model[name]
    kind = chance.integers(4)
    model[name] = [array.reshape(-1), array[None], np.zeros((0,), array.dtype), np.resize(array, array.size + 1)][kind]


def _dtype(model: Model, name: str, chance: Generator) -> None:
    kinds = ["f2", "f8", ">f4", "i8", "u1", "?", "c8", "S3", "g"]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model[name].dtype.kind != "S":  # changed already
            model[name] = np.asarray(model[name]).astype(str(chance.choice(kinds)))


def _missing(model: Model, name: str, chance: Generator) -> None:
    del model[name]


def _extra(model: Model, name: str, chance: Generator) -> None:
    model[str(chance.choice(["more", "weight2", "", "weight\n"]))] = np.zeros(2, "f4")


MODELS: list[Callable[[Model, str, Generator], None]] = [_values, _shape, _dtype, _missing, _extra]


def mutate(message: Message, chance: Generator, old: list[Message]) -> list[Message]:
    """Return what a hostile node sends for this message: its replies, most often one."""
    model = Trainer(NAME).model({name: a.numpy() for name, a in message.content.array_records["arrays"].items()}, 1)
    names = list(model)
    metrics: dict[str, Any] = {"num-examples": 5, "loss": 0.5, "client-id": NAME}
    other: dict[str, Any] = {}
    raw: dict[str, Array] = {}
    what = chance.integers(12)
    for _ in range(int(chance.integers(1, 4))):
        name = str(chance.choice(names))
        if what < 5 and name in model:
            MODELS[what](model, name, chance)
        elif what == 5 and name in model:
            array = Array(np.asarray(model[name]))
            stype = str(chance.choice(["numpy.ndarray"] * 6 + ["pickle", "torch", ""]))
            raw[name] = Array(array.dtype, array.shape, stype, _bytes(array, chance))
        elif what == 6:
            key = str(chance.choice(["num-examples", "loss", "client-id", "more", "acc\nuracy", "\x1b[2J", "é" * 9999]))
            metrics[key] = WEIRD[int(chance.integers(len(WEIRD)))]
        elif what == 7:
            other[str(chance.choice(["client-id", "partition-id", "more"]))] = TEXTS[int(chance.integers(len(TEXTS)))]
            metrics.pop("client-id", None)
    arrays = ArrayRecord({**{n: Array(np.asarray(a)) for n, a in model.items()}, **raw})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    if other:
        content["config"] = ConfigRecord(other)
    if what == 8:
        change = int(chance.integers(5))
        if change == 0:
            content = RecordDict()
        elif change == 1:
            del content["arrays"]
        elif change == 2:
            content["arrays"] = ArrayRecord({})
        elif change == 3:
            content["again"] = arrays
            content["third"] = content["arrays"]
            del content["arrays"]
        else:
            content["arrays"] = MetricRecord({"weight": 1.0})
    if what == 9:
        reason = TEXTS[int(chance.integers(len(TEXTS)))] * int(chance.integers(1, 50))
        return [Message(Error(int(chance.integers(0, 100)), reason), reply_to=message)]
    reply = Message(content, reply_to=message)
    if what == 10:
        field = str(chance.choice(["_group_id", "_reply_to_message_id", "_src_node_id"]))
        strange: dict[str, Any] = {"_group_id": "0", "_reply_to_message_id": "message-0", "_src_node_id": 1000}
        reply.metadata.__dict__[field] = strange[field]
    if what == 11:
        kind = int(chance.integers(3))
        if kind == 0:
            return [reply, reply]
        if kind == 1 and old:
            return [old[int(chance.integers(len(old)))]]
        reply.__dict__["_content"] = None
    return [reply]


def sound(reply: Message) -> dict[str, Any] | None:
    """Read a reply's model by NumPy's own reader; None if it is not one that may count."""
    model = {}
    expected = first_model()
    try:
        records = [one for one in reply.content.values() if isinstance(one, ArrayRecord)]
        for name, array in (reply.content.array_records.get("arrays") or records[0]).items():
            model[name] = np.load(io.BytesIO(array.data), allow_pickle=False)
    except Exception:
        return None
    if model.keys() != expected.keys():
        return None
    for name, array in model.items():
        same = array.shape == expected[name].shape
        same = same and (array.dtype.kind == expected[name].dtype.kind or {array.dtype.kind} <= {*"iu"})
        if not same or not np.isfinite(np.asarray(array, dtype=np.float64)).all():
            return None
    return model


class Pair:
    """The strategy that is attacked, and the one that is not."""

    def __init__(
        self, seed: int = 0, folder: Path | None = None, kind: type[RuleStrategy] = FedStale, **options: Any
    ) -> None:
        self.folder = folder
        quiet: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0, "min_train_nodes": 0, "min_available_nodes": 0}
        # A reply that answers nothing would leave its node at work for one of the two only.
        self.one, self.two = (kind(**quiet, late_for=0, **options) for _ in range(2))
        self.models = [record(first_model()), record(first_model())]
        self.round, self.old, self.seed = 0, list[Message](), seed
        self.counts: Counter[str] = Counter()
        self.good: dict[int, RecordDict] = {}

    def _replies(self, strategy: RuleStrategy, number: int, bad: Callable[[Message], list[Message]]) -> None:
        grid = MemoryGrid({**GOOD, BAD: lambda _: None})
        grid.sent = [None] * (10 * self.round)  # type: ignore[list-item] # ids of messages are those of the round
        messages = list(strategy.configure_train(self.round, self.models[number], ConfigRecord(), grid))
        grid.push_messages(messages)
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node != BAD and number == 0:  # the two get the very same good replies
                self.good[node] = GOOD[node](message).content
            replies += bad(message) if node == BAD else [Message(self.good[node], reply_to=message)]
        model, _ = strategy.aggregate_train(self.round, replies)
        assert model is not None
        self.models[number] = model

    def attack(self) -> bool:
        """One round with one mutated reply; whether it was left out."""
        self.round += 1
        chance = np.random.default_rng([self.seed, self.round])
        sent: list[Message] = []

        def hostile(message: Message) -> list[Message]:
            sent.extend(mutate(message, chance, self.old))
            return list(sent)

        before = len(self.one.left_out)
        self._replies(self.one, 0, hostile)
        account = self.one.account
        assert account is not None
        assert account.balanced, account
        taken = BAD in account.contributed
        left = [one for _, one in list(self.one.left_out)[before:]] if before < 10_000 else account.left_out
        assert taken or BAD in {*account.silent} | {one.node for one in left}, account
        assert {one.node for one in account.left_out} <= {BAD, 1000}, "a good reply was left out"
        assert set(GOOD) <= set(account.contributed), "a good reply was left out"
        assert len(account.left_out) == len(sent) - taken, "every reply that does not count is counted"
        clean: list[Message] = []
        if taken:
            model = sound(sent[0])
            assert model is not None, f"round {self.round}: a reply was taken that is not sound"

        def cleaned(message: Message) -> list[Message]:
            if taken:
                content = RecordDict({**sent[0].content, "arrays": record(model or {})})
                clean.append(Message(content, reply_to=message))
            return clean

        self._replies(self.two, 1, cleaned)
        self._equal()
        self.old = [*self.old[-20:], *sent]
        self.counts.update(["taken"] if taken else [kind_of(one.reason) for one in account.left_out])
        return not taken

    def _equal(self) -> None:
        for (name, ours), theirs in zip(self.models[0].items(), self.models[1].values(), strict=True):
            assert ours.data == theirs.data, f"round {self.round}: {name} differs"
        assert self.one.aggregator is not None
        for values in (self.one.aggregator.model, *self.one.aggregator.buffers.values()):
            assert np.isfinite(values).all(), f"round {self.round}: the model is poisoned"
        if self.round % 50 == 0:
            self.deep()

    def deep(self) -> None:
        """Everything the two remember is equal, and finite."""
        assert self.one.aggregator is not None
        assert self.two.aggregator is not None
        ours, theirs = self.one.aggregator.state, self.two.aggregator.state
        assert self.one.aggregator.identities == self.two.aggregator.identities
        everybody = np.arange(len(self.one.aggregator.identities))
        assert np.isfinite(ours.memory.rows(everybody)).all()
        assert everything(ours) == everything(theirs)
        if self.folder is not None:
            self.one.checkpoint = self.folder
            beside = ours.arrays, dict(ours.notes)  # a save puts what Flower needs there, and the other does not save
            self.one.save_checkpoint()
            ours.arrays, ours.notes = beside
            self.one.checkpoint = None
            saved, _, _ = checkpoint_file.load(self.folder)
            assert saved.identities == self.one.aggregator.identities
            assert np.array_equal(saved.model, self.one.aggregator.model)
            saved.state.close()
            self.counts["(checkpoints read back)"] += 1


KINDS = {
    "an array cannot be read": "an array cannot be read",
    "arrays are serialised as": "another serialisation",
    "missing arrays": "missing arrays",
    "unknown arrays": "unknown arrays",
    "has shape": "wrong shape",
    "expected": "wrong dtype, or no ArrayRecord",
    "NaN": "NaN or infinity",
    "too large": "too large",
    "negative variance": "negative variance",
    "answers no message": "not an answer to this round",
    "answered already as": "another's identity",
    "answered already": "a second reply",
    "not a short line": "identity that is no short line of text",
    "no content": "no content",
    "error": "error",
}


def kind_of(reason: str) -> str:
    """A reason in a few words."""
    return next((kind for words, kind in KINDS.items() if words in reason), reason)


def flower(
    mutations: int,
    seed: int = 0,
    every: int = 2000,
    pairs: type[Pair] = Pair,
    kinds: tuple[type[RuleStrategy], ...] = (FedStale, TemperedFedStale),
) -> Counter[str]:
    """Attack so many times; strategies start anew now and then, in turn, so that new clients stay few."""
    counts: Counter[str] = Counter()
    with flower_task(logging.CRITICAL):
        for turn, start in enumerate(range(0, mutations, every)):
            with TemporaryDirectory() as folder:
                pair = pairs(seed + start, Path(folder), kinds[turn % len(kinds)])
                for _ in range(min(every, mutations - start)):
                    pair.attack()
                pair.deep()
            counts += pair.counts
    return counts


def rule(mutations: int, seed: int = 0) -> Counter[str]:
    """Mutate rounds of FedStale."""
    n, d = 5, 7
    counts: Counter[str] = Counter()
    ours = fs.FedStale()
    state = ours.init(fs.Federation(n, d))
    numbers = [np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0, 1e-300, 1.5, -1.0]
    for k in range(mutations):
        chance = np.random.default_rng([seed, 1, k])
        clients: Any = np.flatnonzero(chance.random(n) < 0.7)
        updates: Any = chance.standard_normal((len(clients), d))
        p: Any = chance.uniform(0.05, 1.0, len(clients))
        index: Any = state.round
        what = chance.integers(9)
        if what == 0 and updates.size:
            updates.reshape(-1)[chance.integers(updates.size)] = chance.choice(numbers)
        elif what == 1 and len(p):
            p[chance.integers(len(p))] = chance.choice(numbers)
        elif what == 2:
            clients = chance.integers(-2, n + 2, len(clients))
        elif what == 3:
            updates = updates[:, : int(chance.integers(0, d))] if chance.random() < 0.5 else updates[:-1]
        elif what == 4:
            updates = updates.astype(str(chance.choice(["i8", "c16", "U4", "?", "f2", "f4", "O"])))
        elif what == 5:
            index = int(chance.integers(0, state.round + 1))
        elif what == 6:
            updates = [row if chance.random() < 0.7 else row[: int(chance.integers(0, d))] for row in updates]
        elif what == 7:
            p = chance.choice(numbers)
        before = everything(state)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                delta = np.asarray(ours.combine(state, fs.Round(index, clients, updates, probabilities=p)))
        except fs.InvalidInput as error:
            if what == 8:
                raise AssertionError(f"mutation {k}: after what came before, a valid round is refused") from error
            assert everything(state) == before, f"mutation {k}: a refused round left a trace"
            counts["refused: " + str(error).partition("[")[0].partition("=")[0].strip().rstrip("0123456789 ")] += 1
            continue
        assert np.isfinite(delta.astype(np.float64)).all(), f"mutation {k}: {delta}"
        rows = state.memory.rows(np.arange(n))
        assert np.isfinite(rows).all(), f"mutation {k}: the memory is poisoned"
        if np.abs(rows).max() > 1e100:  # accepted, as it is a number: start anew, or everything is huge from now on
            state = ours.init(fs.Federation(n, d))
        counts["applied"] += 1
    return counts


def main() -> None:
    """Mutate and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from .hostile_late import LatePair

    def late(mutations: int, seed: int) -> Counter[str]:
        return flower(mutations, seed, pairs=LatePair)

    for name, attack in (("Flower replies", flower), ("late replies", late), ("rounds of the rule", rule)):
        began = time.monotonic()
        counts = attack(options.mutations, options.seed)
        print(f"{name}: {options.mutations} mutations in {time.monotonic() - began:.0f} s", flush=True)
        for reason, count in counts.most_common():
            print(f"  {count:7d}  {reason}")


if __name__ == "__main__":
    main()
