"""The models: plain torch modules, no state besides their parameters, so that any engine can vectorise them.

Inputs are float32 of shape (batch, channels, height, width) or (batch, features), outputs are logits of shape
(batch, classes); the character model takes ids (batch, length) and puts out logits (batch, length, classes).
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


def logistic(inputs: int, classes: int = 10) -> nn.Sequential:
    """Make multinomial logistic regression on inputs of `inputs` pixels: convex, so that theory applies to it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def mlp(inputs: int, hidden: int = 32, classes: int = 10) -> nn.Sequential:
    """Make a perceptron with one hidden layer: inputs-hidden-classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _cnn(channels: tuple[int, int, int], kernel: int, features: int, *hidden: int, padding: int = 0) -> nn.Sequential:
    """Two convolutions, each with ReLU and 2×2 max-pooling, then linear layers to ten classes."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise((features, *hidden)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((features, *hidden)[-1], 10))


def digits_cnn() -> nn.Sequential:
    """Make a small CNN for 1×8×8 digits: two 3×3 convolutions (8, 16), 1,898 parameters."""
    return _cnn((1, 8, 16), 3, 16 * 2 * 2, padding=1)


def mnist_cnn() -> nn.Sequential:
    """Make the CNN of the paper's MNIST experiments, for 1×28×28 inputs: 421,642 parameters."""
    return _cnn((1, 32, 64), 3, 64 * 7 * 7, 128, padding=1)


def cifar_cnn() -> nn.Sequential:
    """Make the CNN that the authors' code defines for 3×32×32 inputs.

    5×5 convolutions (32, 64) without padding, each followed by ReLU and max-pooling, then a 2048-wide linear layer:
    3,353,034 parameters. (Their default is a MobileNetV3 pretrained on ImageNet, whose weights no registry has.)
    """
    return _cnn((3, 32, 64), 5, 64 * 5 * 5, 2048)


class CharacterGRU(nn.Module):
    """The next character of every place: embedding, one layer of gated recurrent units, scores of all characters.

    With 65 characters, 32 embedded numbers and 96 units: 45,825 parameters.
    """

    def __init__(self, letters: int, embedded: int = 32, hidden: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, embedded)
        self.recurrent = nn.GRU(embedded, hidden, batch_first=True)
        self.out = nn.Linear(hidden, letters)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores (batch, length, letters) of ids (batch, length)."""
        states, _ = self.recurrent(self.embedding(ids))
        scores: Tensor = self.out(states)
        return scores
