"""The head of a language model and its loss alone: bytes, seconds and bits.

`python -m benchmarks.head [--quick]`. Each row runs in a process of its own: loss and
gradients of `cross_entropy(hidden @ weight.T, target)` with 4096 tokens and 50257 words
(width 768), in 32 and 16 bits. Beside eager and lowtide, at a fifth of eager's peak and
at its lowest, stand what others do: chunks of tokens whose weight gradients are added
up, as in Liger, and torch's own `linear_cross_entropy`. The peak is that of allocated
bytes above `hidden`, `weight` and `target`. Results go to
`benchmarks/results/head.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "head.json"
METHODS = ("eager", "lowtide a fifth", "lowtide lowest", "token chunks", "torch")
DTYPES = ("float32", "bfloat16")
MIB = 1 << 20
TOKENS, WORDS, WIDTH = 4096, 50257, 768
RUNS = 2


def run(method: str, name: str, tokens: int, words: int) -> dict[str, Any]:
    """One row."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import lowtide
    from lowtide.engine.bits import checksum
    from lowtide.engine.costs.ledger import ledger

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = getattr(torch, name)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter((torch.randn(words, WIDTH) * 0.1).to(dtype))

        def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            if method == "torch":
                return F.linear_cross_entropy(hidden, self.weight, target)  # type: ignore
            return F.cross_entropy(F.linear(hidden, self.weight), target)

    model = Head()
    hidden = torch.randn(tokens, WIDTH).to(dtype).requires_grad_()
    target = torch.randint(0, words, (tokens,))
    given = sum(t.nbytes for t in (hidden, model.weight, target))
    call: Callable[..., Any] = model
    if method == "torch" and not hasattr(F, "linear_cross_entropy"):
        return {"method": method, "dtype": name, "missing": True}
    if method.startswith("lowtide"):
        budget: int = given + _eager_bytes(name, tokens, words) // 5
        if method == "lowtide lowest":
            lowtide.optimize(model, budget=1)
            try:
                model(hidden, target)
            except lowtide.BudgetTooSmallError as error:
                budget = error.floor_bytes
            lowtide.restore(model)
        call = lowtide.optimize(model, budget=budget)
    elif method == "token chunks":
        call = _by_tokens(model.weight)

    def step() -> torch.Tensor:
        loss = call(hidden, target)
        if method != "token chunks":
            loss.backward()
        return loss.detach()

    def clear() -> None:
        hidden.grad = model.weight.grad = None

    loss = step()
    bits = [checksum(t) for t in (loss, hidden.grad, model.weight.grad)]  # type: ignore
    clear()
    batch = (hidden, target)
    peak = ledger(step, modules=[model], batch=batch).peak_bytes - given
    clear()
    taken: list[float] = []
    for _ in range(RUNS):
        begin = time.thread_time()
        step()
        taken.append(time.thread_time() - begin)
        clear()
    return {
        "method": method,
        "dtype": name,
        "peak_bytes": peak,
        "seconds": min(taken),
        "bits": bits,
    }


def _eager_bytes(dtype: str, tokens: int, words: int) -> int:
    """Three tensors: the log-softmax, its gradient, and that of the logits."""
    return 3 * tokens * words * (4 if dtype == "float32" else 2)


def _by_tokens(weight: Any) -> Callable[..., Any]:
    """Gradients in the forward, some tokens at a time, those of the weight summed."""
    import torch
    import torch.nn.functional as F

    def loss_of(hidden: Any, target: Any, rows: int = 256) -> Any:
        total = 0.0
        of_weight = torch.zeros_like(weight)
        of_hidden = torch.empty_like(hidden)
        for start in range(0, len(hidden), rows):
            some = slice(start, start + rows)
            part = hidden.detach()[some].requires_grad_()
            own = weight.detach().requires_grad_()
            loss = F.cross_entropy(F.linear(part, own), target[some], reduction="sum")
            (loss / len(hidden)).backward()
            of_hidden[some] = part.grad
            of_weight += own.grad
            total = total + loss.detach()
        hidden.grad, weight.grad = of_hidden, of_weight
        return total / len(hidden)

    return loss_of


def main(arguments: list[str]) -> None:
    sizes = ["512", "8192"] if "--quick" in arguments else [str(TOKENS), str(WORDS)]
    rows: list[dict[str, Any]] = []
    for dtype in DTYPES:
        eager: dict[str, Any] = {}
        for method in METHODS:
            command = [sys.executable, "-m", "benchmarks.head", "--one", method, dtype]
            done = subprocess.run(
                [*command, *sizes], capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(f"{method}, {dtype}: {done.stderr[-2000:]}")
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            if row.get("missing"):
                print(f"{dtype:9} {method:15} is not in this torch", flush=True)
                continue
            eager = eager or row
            same = [a == b for a, b in zip(row["bits"], eager["bits"], strict=True)]
            row["same_bits"] = all(same)
            print(
                f"{dtype:9} {method:15} {row['peak_bytes'] / MIB:8.1f} MiB "
                f"({row['peak_bytes'] / eager['peak_bytes']:6.1%}), "
                f"{row['seconds']:6.2f} s "
                f"({row['seconds'] / eager['seconds'] - 1:+6.1%}), "
                f"bits {'equal' if all(same) else 'differ'}",
                flush=True,
            )
    if "--quick" not in arguments:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        method, dtype, tokens, words = sys.argv[2:6]
        print(json.dumps(run(method, dtype, int(tokens), int(words))))
    else:
        main(sys.argv[1:])
