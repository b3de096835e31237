"""Models whose code is out of the ordinary: loops, branches, hooks, own functions."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo.cases import Example
from benchmarks.zoo.oddities import WIDTH, odd, perceptron, rows, square, tokens


@odd
def lstm() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(512, WIDTH)
            self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
            self.head = nn.Linear(WIDTH, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.table(x))[0])

    targets = torch.randint(512, (8 * 64,))
    return Example(
        Net(), tokens(8, 64), lambda y: F.cross_entropy(y.flatten(0, 1), targets)
    )


@odd
def gru() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)
            self.gru = nn.GRU(WIDTH, WIDTH, bidirectional=True, batch_first=True)
            self.head = perceptron(2, 2 * WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(self.inner(x).relu())[0])

    return Example(Net(), rows(8, 64, WIDTH), square)


class _Experts(nn.Module):
    def __init__(self, number: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, number)
        self.experts = nn.ModuleList(perceptron(1) for _ in range(number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).softmax(-1).topk(2)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == number)
            if row.numel() == 0:
                continue
            part = expert(x[row]) * weight[row, slot, None]
            result = result.index_add(0, row, part)
        return result


@odd
def mixture_of_experts() -> Example:
    layers = [_Experts() for _ in range(2)]
    return Example(nn.Sequential(*layers), rows(512, WIDTH), square)


@odd
def branch_on_value() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (perceptron(2) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            x = self.second(x) if x.mean().item() > 0 else self.second(-x)
            return self.third(x)

    return Example(Net(), rows(512, WIDTH), square)


@odd
def checkpointed() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(perceptron(2) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    return Example(Net(), rows(512, WIDTH), square)


@odd
def lazy_modules() -> Example:
    net = nn.Sequential(
        nn.LazyConv2d(16, 3, padding=1),
        nn.LazyBatchNorm2d(),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    return Example(net, rows(8, 3, 32, 32), square)


@odd
def number_that_changes() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()
            self.temperature = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.temperature *= 0.9
            return self.body(x) / self.temperature

    return Example(Net(), rows(512, WIDTH), square)


@odd
def coin_in_python() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(perceptron(1) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                if random.random() < 0.8:
                    x = x + block(x)
            return x

    return Example(Net(), rows(512, WIDTH), square)


@odd
def own_autograd_function() -> Example:
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient * (x.abs() < 2)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(perceptron(1) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = Clip.apply(block(x))
            return x

    return Example(Net(), rows(512, WIDTH), square)


@odd
def printing() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = perceptron(2), perceptron(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            print("half-way", float(x.detach().mean()))
            return self.second(x)

    return Example(Net(), rows(512, WIDTH), square)


@odd
def hooks() -> Example:
    net = perceptron()
    net[3].register_forward_hook(lambda m, x, y: y * 1.5)
    net[6].register_full_backward_hook(lambda m, x, y: (x[0] * 0.5,))
    net[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return Example(net, rows(512, WIDTH), square)


@odd
def parametrized_weights() -> Example:
    net = perceptron()
    nn.utils.parametrizations.spectral_norm(net[0])
    nn.utils.parametrizations.weight_norm(net[2])
    return Example(net, rows(512, WIDTH), square)


@odd
def fixed_point() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body = perceptron(1), nn.Linear(WIDTH, WIDTH)
            nn.init.normal_(self.body.weight, std=0.02)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = state = self.first(x)
            for _ in range(20):
                before, state = state, torch.tanh(self.body(state) + x)
                if (state - before).abs().max() < 1e-2:
                    break
            return state

    return Example(Net(), rows(512, WIDTH), square)


@odd
def recurrent_cell_in_a_loop() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = None
            for time in x.unbind(1):
                state = self.cell(time, state)
            return state[0]

    return Example(Net(), rows(32, 24, WIDTH), square)


@odd
def graph_network() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(perceptron(1) for _ in range(3))

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            source, target = edges
            for layer in self.layers:
                sums = torch.zeros_like(x).index_add(0, target, layer(x)[source])
                x = x + sums / 4
            return x

    batches = [(*x, torch.randint(256, (2, 1024))) for x in rows(256, WIDTH)]
    return Example(Net(), batches, square)


@odd
def frozen_body() -> Example:
    net = nn.Sequential(perceptron(3), nn.Linear(WIDTH, WIDTH), perceptron(1))
    net[0].requires_grad_(False)
    return Example(net, rows(512, WIDTH), square)


@odd
def reversible_by_hand() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.ModuleList(perceptron(1, WIDTH // 2) for _ in range(4))
            self.right = nn.ModuleList(perceptron(1, WIDTH // 2) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, -1)
            for left, right in zip(self.left, self.right, strict=True):
                a = a + left(b)
                b = b + right(a)
            return torch.cat([a, b], -1)

    return Example(Net(), rows(512, WIDTH), square)


@odd
def gradient_of_gradient() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            score = self.body(x).square().mean()
            (slope,) = torch.autograd.grad(score, x, create_graph=True)
            return score + slope.square().sum()

    return Example(Net(), rows(256, WIDTH))


@odd
def vmapped() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.vmap(self.body)(x)

    return Example(Net(), rows(64, 8, WIDTH), square)
