"""Apps of the shapes that Flower's examples have, written here: with one import changed they run as with FedAvg.

With every client present the two strategies are the same, so that the models must be.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from .grid import MemoryGrid, flat

FLOWERS = "from flwr.serverapp.strategy import FedAvg"
OURS = "from fedstale.flower import TemperedFedStale as FedAvg"

NUMPY = {
    "client_app": """
        import numpy as np
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        app = ClientApp()

        @app.train()
        def train(msg: Message, context: Context):
            arrays = msg.content["arrays"].to_numpy_ndarrays()
            arrays = [0.9 * a + 0.1 * context.node_config["partition-id"] for a in arrays]
            metrics = MetricRecord({"loss": 0.5, "num-examples": 10 + context.node_config["partition-id"]})
            return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=msg)

        @app.evaluate()
        def evaluate(msg: Message, context: Context):
            metrics = MetricRecord({"accuracy": 0.5, "num-examples": 3})
            return Message(RecordDict({"metrics": metrics}), reply_to=msg)
        """,
    "server_app": """
        import numpy as np
        from flwr.app import ArrayRecord, Context
        from flwr.serverapp import Grid, ServerApp
        from flwr.serverapp.strategy import FedAvg

        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context):
            global result
            arrays = ArrayRecord([np.ones((3, 2)), np.zeros(4)])
            strategy = FedAvg()
            rounds = context.run_config["num-server-rounds"]
            result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        """,
}
SKLEARN = {
    "client_app": """
        import numpy as np
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from sklearn.linear_model import LogisticRegression

        app = ClientApp()

        def data(context):
            chance = np.random.default_rng(context.node_config["partition-id"])
            x = chance.normal(size=(40, 3))
            return x, (x @ [1.0, -2.0, 0.5] > 0).astype(int)

        def model(msg):
            found = LogisticRegression(max_iter=1, warm_start=True)
            found.classes_ = np.arange(2)
            found.coef_, found.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
            return found

        @app.train()
        def train(msg: Message, context: Context):
            import warnings

            x, y = data(context)
            found = model(msg)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.fit(x, y)
            record = ArrayRecord([found.coef_, found.intercept_])
            metrics = MetricRecord({"num-examples": len(x), "train_logloss": 0.1})
            return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=msg)

        @app.evaluate()
        def evaluate(msg: Message, context: Context):
            x, y = data(context)
            metrics = MetricRecord({"num-examples": len(x), "accuracy": float(model(msg).score(x, y))})
            return Message(RecordDict({"metrics": metrics}), reply_to=msg)
        """,
    "server_app": """
        import numpy as np
        from flwr.app import ArrayRecord, Context
        from flwr.serverapp import Grid, ServerApp
        from flwr.serverapp.strategy import FedAvg

        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            global result
            arrays = ArrayRecord([np.zeros((1, 3)), np.zeros(1)])
            strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)
            rounds = context.run_config["num-server-rounds"]
            result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        """,
}
TORCH_CLIENT = """
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))

    @app.train()
    def train(msg: Message, context: Context):
        model = net()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        generator = torch.Generator().manual_seed(context.node_config["partition-id"])
        x = torch.randn(20, 4, generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"], momentum=0.9)
        for _ in range(context.run_config["local-epochs"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": float(loss), "num-examples": len(x)})
        record = ArrayRecord(model.state_dict())
        return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context):
        metrics = MetricRecord({"eval_loss": 0.3, "eval_acc": 0.5, "num-examples": 20})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
    """
PYTORCH = {
    "client_app": TORCH_CLIENT,
    "server_app": """
        import torch
        from app.client_app import net
        from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
        from flwr.serverapp import Grid, ServerApp
        from flwr.serverapp.strategy import FedAvg

        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            global result
            torch.manual_seed(0)
            arrays = ArrayRecord(net().state_dict())
            strategy = FedAvg(fraction_evaluate=context.run_config["fraction-evaluate"])
            result = strategy.start(
                grid=grid,
                initial_arrays=arrays,
                train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
                num_rounds=context.run_config["num-server-rounds"],
                evaluate_fn=global_evaluate,
            )

        def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            net().load_state_dict(arrays.to_torch_state_dict())
            return MetricRecord({"accuracy": 0.1, "loss": 0.2})
        """,
}
ADVANCED = {
    "client_app": TORCH_CLIENT,
    "strategy": """
        from flwr.app import ConfigRecord, MetricRecord
        from flwr.serverapp.strategy import FedAvg

        class CustomStrategy(FedAvg):
            def set_save_path(self, path):
                self.save_path, self.best = path, 0.0

            def configure_train(self, server_round, arrays, config, grid):
                if server_round % 2 == 0:
                    config["lr"] *= 0.5
                return super().configure_train(server_round, arrays, config, grid)

            def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None,
                      evaluate_config=None, evaluate_fn=None):
                from flwr.serverapp.strategy import Result

                result, arrays = Result(), initial_arrays
                for server_round in range(1, num_rounds + 1):
                    messages = self.configure_train(server_round, arrays, train_config, grid)
                    replies = grid.send_and_receive(messages=messages, timeout=timeout)
                    aggregated, metrics = self.aggregate_train(server_round, replies)
                    if aggregated is not None:
                        result.arrays = arrays = aggregated
                    if metrics is not None:
                        result.train_metrics_clientapp[server_round] = metrics
                    messages = self.configure_evaluate(server_round, arrays, evaluate_config or ConfigRecord(), grid)
                    metrics = self.aggregate_evaluate(
                        server_round, grid.send_and_receive(messages=messages, timeout=timeout)
                    )
                    if metrics is not None:
                        result.evaluate_metrics_clientapp[server_round] = metrics
                    found = evaluate_fn(server_round, arrays)
                    if found["accuracy"] > self.best:
                        self.best = found["accuracy"]
                        (self.save_path / "best").write_bytes(b"model")
                return result
        """,
    "server_app": """
        from pathlib import Path

        import torch
        from app.client_app import net
        from app.strategy import CustomStrategy
        from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
        from flwr.serverapp import Grid, ServerApp

        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            global result
            torch.manual_seed(0)
            strategy = CustomStrategy(fraction_train=1.0, fraction_evaluate=0.5)
            strategy.set_save_path(Path(context.run_config["output"]))
            result = strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(net().state_dict()),
                train_config=ConfigRecord({"lr": 0.1}),
                num_rounds=context.run_config["num-server-rounds"],
                evaluate_fn=lambda server_round, arrays: MetricRecord({"accuracy": 0.1 * server_round}),
            )
        """,
}
SHAPES = {"numpy": NUMPY, "sklearn": SKLEARN, "pytorch": PYTORCH, "advanced-pytorch": ADVANCED}


@pytest.fixture
def _fresh() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        del sys.modules[name]


def run(texts: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write an app, import it as Flower does, and run it with three clients."""
    (folder / "app").mkdir(parents=True)
    (folder / "app" / "__init__.py").write_text("")
    for name, text in texts.items():
        (folder / "app" / f"{name}.py").write_text(textwrap.dedent(text))
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        del sys.modules[name]
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        client, server = (importlib.import_module(f"app.{name}_app") for name in ("client", "server"))
    config: dict[str, Any] = {"num-server-rounds": 3, "local-epochs": 2, "learning-rate": 0.1, "fraction-evaluate": 0.5}
    config |= {"output": str(folder)}
    contexts = [Context(1, i, {"partition-id": i, "num-partitions": 3}, RecordDict(), dict(config)) for i in range(3)]
    grid = MemoryGrid({i: lambda m, c=contexts[i]: client.app(m, c) for i in range(3)})  # type: ignore[misc]
    server.app(grid, Context(1, 9, {}, RecordDict(), dict(config)))
    return server.result


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("shape", SHAPES)
def test_one_import_changed(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch" in shape:
        pytest.importorskip("torch").set_num_threads(1)
    if shape == "sklearn":
        pytest.importorskip("sklearn")
    texts = SHAPES[shape]
    changed = {name: text.replace(FLOWERS, OURS) for name, text in texts.items()}
    assert sum(text != texts[name] for name, text in changed.items()) == 1
    theirs = run(texts, tmp_path / "theirs", monkeypatch)
    ours = run(changed, tmp_path / "ours", monkeypatch)
    np.testing.assert_allclose(flat(ours.arrays), flat(theirs.arrays), rtol=2e-5, atol=1e-6)
    assert [*ours.arrays] == [*theirs.arrays]
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        found, expected = getattr(ours, kind), getattr(theirs, kind)
        assert found.keys() == expected.keys()
        for t, metrics in expected.items():
            assert {name: found[t][name] for name in metrics} == pytest.approx(dict(metrics), rel=1e-4)
    if shape == "advanced-pytorch":
        assert (tmp_path / "ours" / "best").exists()
