"""Winograd's convolutions, with fewer multiplications, against the direct ones that torch has.

    python benchmarks/winograd.py [--repetitions 30] [--docs DOCS]

The second convolution of the paper's MNIST CNN (32 to 64 channels, 3 × 3, 14 × 14 images, batch 128), forward, on one
thread, in turns: oneDNN's direct convolution; Winograd's F(2×2, 3×3), which needs 2.25 times fewer multiplications, by
torch's batched matrix products; and those products alone, without what transforms their inputs and outputs. (oneDNN as
torch brings it has no Winograd convolution for x86 processors.) Results: docs/results/benchmarks/winograd.csv and
docs/scale.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import scale_page
from benchmarks.peers import machine
from benchmarks.peers.environments import ROOT
from benchmarks.timing import interleaved
from fedstale import training

BATCH, CHANNELS, FILTERS, SIDE = 128, 32, 64, 14
TILES = SIDE // 2
# Lavin & Gray, Fast algorithms for convolutional neural networks, CVPR 2016: Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A.
TO_INPUT = torch.tensor([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
TO_FILTER = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
TO_OUTPUT = torch.tensor([[1.0, 1, 1, 0], [0, 1, -1, -1]])
TWICE = [torch.kron(matrix, matrix) for matrix in (TO_INPUT, TO_FILTER, TO_OUTPUT)]


def winograd(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve x (B, H, W, C) with weight (F, C, 3, 3), padded by one; shape (B, H, W, F)."""
    to_input, to_filter, to_output = TWICE
    tiles = functional.pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, 4, 2).unfold(2, 4, 2)
    inputs = (to_input @ tiles.permute(4, 5, 0, 1, 2, 3).reshape(16, -1)).view(16, -1, CHANNELS)
    filters = (to_filter @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(16, CHANNELS, FILTERS)
    outputs = to_output @ torch.bmm(inputs, filters).view(16, -1)
    return outputs.view(2, 2, -1, TILES, TILES, FILTERS).permute(2, 3, 0, 4, 1, 5).reshape(-1, SIDE, SIDE, FILTERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    training.keep_freed_memory()
    torch.manual_seed(0)
    x = torch.randn(BATCH, CHANNELS, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(FILTERS, CHANNELS, 3, 3).contiguous(memory_format=torch.channels_last)
    rows = x.permute(0, 2, 3, 1).contiguous()
    a, b = torch.randn(16, BATCH * TILES**2, CHANNELS), torch.randn(16, CHANNELS, FILTERS)
    with torch.no_grad():
        direct = functional.conv2d(x, weight, padding=1)
        apart = float((winograd(rows, weight).permute(0, 3, 1, 2) - direct).norm() / direct.norm())
        seconds = interleaved(
            {
                "direct": lambda: functional.conv2d(x, weight, padding=1),
                "Winograd": lambda: winograd(rows, weight),
                "its products alone": lambda: torch.bmm(a, b),
            },
            arguments.repetitions,
        )
    found = [{"way": way, "ms": 1e3 * median(each)} for way, each in seconds.items()]
    for row in found:
        print(f"{row['way']:20s} {row['ms']:.2f} ms")
    print(f"apart: {apart:.1g}")
    results = arguments.docs / "results" / "benchmarks"
    machine.write(results / "winograd.csv", found)
    machine.write_about(results / "winograd-about.csv", "python benchmarks/winograd.py", apart=f"{apart:.1g}")
    scale_page.render(arguments.docs)


if __name__ == "__main__":
    main()
