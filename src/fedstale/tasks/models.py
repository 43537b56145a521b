"""The models: plain torch modules, no state besides their parameters, so that any engine can vectorise them.

Inputs are float32 of shape (batch, channels, height, width); outputs are logits of shape (batch, classes).
"""

from __future__ import annotations

from torch import nn


def logistic(inputs: int, classes: int = 10) -> nn.Sequential:
    """Make multinomial logistic regression on inputs of `inputs` pixels: convex, so that theory applies to it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def mlp(inputs: int, hidden: int = 32, classes: int = 10) -> nn.Sequential:
    """Make a perceptron with one hidden layer: inputs-hidden-classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def digits_cnn() -> nn.Sequential:
    """Make a small CNN for 1×8×8 digits: two 3×3 convolutions (8, 16), 1,898 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 2 * 2, 10),
    )


def mnist_cnn() -> nn.Sequential:
    """Make the CNN of the paper's MNIST experiments, for 1×28×28 inputs: 421,642 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def cifar_cnn() -> nn.Sequential:
    """Make the CNN that the authors' code defines for 3×32×32 inputs.

    5×5 convolutions (32, 64) without padding, each followed by ReLU and max-pooling, then a 2048-wide linear layer:
    3,353,034 parameters. (Their default is a MobileNetV3 pretrained on ImageNet, whose weights no registry has.)
    """
    return nn.Sequential(
        nn.Conv2d(3, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 2048),
        nn.ReLU(),
        nn.Linear(2048, 10),
    )
