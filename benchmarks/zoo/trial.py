"""One model's trial: some steps without lowtide, some with it, and what differs.

The budget is a first guess between what is always there and what the step allocates
without lowtide. If that is below the floor, the refusal names the floor, and the budget
lies half-way between it and eager's peak. Where values decide what the step does, the
floor is known only after the first step, and a warning takes the refusal's place. What
is found is a flat record; `verdict.py` judges it.
"""

from __future__ import annotations

import gc
import os
import random
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from benchmarks.zoo.allocated import Allocated
from benchmarks.zoo.cases import Build, Example
from benchmarks.zoo.verdict import Record
from lowtide import optimize, planned
from lowtide.engine.bits import first_difference, same_bits
from lowtide.engine.costs.ledger import ledger
from lowtide.engine.training import default_loss
from lowtide.errors import BudgetTooSmallError, LowtideWarning

# The first ones may plan, also anew from what was seen; the last one is measured.
STEPS = 4
PLANNING_SECONDS = 0.5
FIRST_SHARE = 0.6
LOWEST = "the lowest peak found for this step"


@dataclass
class Trained:
    """What some steps computed, and what each allocated at once.

    `lasting_bytes` is what is there at the end of a step, gradients included.
    """

    values: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    streams: dict[str, Any] = field(default_factory=dict[str, Any])
    peaks: list[int | None] = field(default_factory=list[int | None])
    seconds: list[float] = field(default_factory=list[float])
    lasting_bytes: int = 0


class Loop:
    """The training loop of an example, as anyone would write it."""

    def __init__(self, build: Build) -> None:
        seed()
        self.example: Example = build()
        self.model = self.example.model.train()
        learning = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = self.example.optimizer(learning)
        self.loss = self.example.loss or default_loss
        seed()

    def batch(self, number: int) -> Any:
        """What the step of this number is called with."""
        return self.example.batches[number % len(self.example.batches)]

    def forward_and_backward(self, number: int) -> torch.Tensor:
        batch = self.batch(number)
        keywords = isinstance(batch, dict)
        output = self.model(**batch) if keywords else self.model(*batch)
        loss = self.loss(output)
        loss.backward()
        return loss.detach()

    def step(self, number: int, into: Trained) -> None:
        """One step; what it computed is written down under its number."""
        self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        resident = self.resident_bytes(number)
        begun = time.perf_counter()
        allocated = Allocated()
        loss = self.forward_and_backward(number)
        seconds = time.perf_counter() - begun
        self.optimizer.step()
        rise = allocated.rise_bytes()
        # Not before the update: lowtide watches a step until then, and would take the
        # copies for the user's.
        self.write_gradients(f"step {number + 1}", loss, into)
        into.peaks.append(None if rise is None else resident + rise)
        into.seconds.append(seconds)
        if number + 1 == STEPS:
            self.write_state(into)

    def write_gradients(self, step: str, loss: torch.Tensor, into: Trained) -> None:
        """The loss and the gradients of a step."""
        into.values[f"{step}, loss"] = loss
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                into.values[f"{step}, gradient of {name}"] = parameter.grad.clone()

    def write_state(self, into: Trained) -> None:
        """Parameters, buffers and random streams as the steps left them."""
        for name, value in self.model.named_parameters():
            into.values[f"parameter {name}"] = value.detach().clone()
        for name, value in self.model.named_buffers():
            into.values[f"buffer {name}"] = value.detach().clone()
        into.values["generator"] = torch.get_rng_state()
        into.streams["Python's generator"] = random.getstate()
        into.streams["numpy's generator"] = np.random.get_state()[1].tolist()

    def resident_bytes(self, number: int) -> int:
        """Bytes of what is there before a step."""
        held: list[Any] = [*self.model.parameters(), *self.model.buffers()]
        held += pytree.tree_leaves(self.batch(number))
        held += [v for entry in self.optimizer.state.values() for v in entry.values()]
        return storage_bytes(held)


def seed() -> None:
    """Start all random streams anew."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def storage_bytes(values: Iterable[Any]) -> int:
    """Bytes of the storages behind tensors, each counted once."""
    sizes: dict[int, int] = {}
    for value in values:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            if torch.nn.parameter.is_lazy(value):
                continue
            storage = value.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def trial(build: Build) -> Record:
    """Train a model both ways and compare."""
    torch.set_num_threads(1)
    record: Record = {}
    try:
        eager = trained_plain(build)
    except Exception as error:
        return {"not_run": one_line(error)}
    record["eager_seconds"] = round(eager.seconds[-1], 3)
    record["eager_peak_bytes"] = eager.peaks[-1]
    begun = time.process_time()
    try:
        train_under_budgets(build, eager, record)
    except BudgetTooSmallError as error:
        if "(optimizer)" in str(error):
            return trial(partial(with_plain_updates, build)) | {"optimizer": "SGD"}
        record["refused"] = one_line(error)
    except Exception as error:
        record["exception"] = one_line(error)
        record["raised_at"] = place_of(error)
    record["seconds"] = round(time.process_time() - begun, 1)
    return record


def with_plain_updates(build: Build) -> Example:
    """The model with an optimizer that needs no memory.

    Of some the peak is in the update of AdamW, and no plan of the step can lower it.
    """
    return replace(build(), optimizer=partial(torch.optim.SGD, lr=1e-3))


def trained_plain(build: Build) -> Trained:
    """The steps without lowtide."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop, found = Loop(build), Trained()
        for number in range(STEPS):
            loop.step(number, found)
        gradients = [p.grad for p in loop.model.parameters()]
        found.lasting_bytes = loop.resident_bytes(0) + storage_bytes(gradients)
        if found.peaks[-1] is None:
            found.peaks[-1] = ledger_peak(loop)
    return found


def train_under_budgets(build: Build, eager: Trained, record: Record) -> None:
    """Train under a budget that lies above the floor, which a refusal tells."""
    low, high = eager.lasting_bytes, record["eager_peak_bytes"]
    record["budget_bytes"] = low + int((high - low) * FIRST_SHARE)
    try:
        train_under(build, eager, record)
    except BudgetTooSmallError as error:
        low = record["floor_bytes"] = error.floor_bytes
        if low >= high:
            raise
    else:
        if not any(LOWEST in warning for warning in record["warnings"]):
            return
        low = record["floor_bytes"] = record["promised_bytes"]
        if low >= high:
            return
    record["budget_bytes"] = (low + high) // 2
    train_under(build, eager, record)


def train_under(build: Build, eager: Trained, record: Record) -> None:
    """Train under the budget, and compare with eager."""
    loop, ours = Loop(build), Trained()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimize(
            loop.model,
            budget=record["budget_bytes"],
            optimizer=loop.optimizer,
            time_limit=PLANNING_SECONDS,
        )
        try:
            for number in range(STEPS):
                loop.step(number, ours)
        finally:
            write_warnings(caught, record)
            write_plan(loop.model, record)
    record["peak_bytes"], record["first_peak_bytes"] = ours.peaks[-1], ours.peaks[0]
    record["step_seconds"] = round(ours.seconds[-1], 3)
    record["first_seconds"] = round(ours.seconds[0], 2)
    difference = difference_of(eager, ours)
    if difference and difference_of(eager, trained_plain(build)):
        record["eager_differs_from_itself"] = True
    record["difference"] = difference
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            record["ledger_peak_bytes"] = ledger_peak(loop)
        except Exception as error:
            record["ledger_error"] = one_line(error)


def ledger_peak(loop: Loop) -> int:
    """The peak of one more step as lowtide's own ledger sees it."""
    loop.optimizer.zero_grad(set_to_none=True)

    def step() -> None:
        loop.forward_and_backward(0)
        loop.optimizer.step()

    state = [dict(entry) for entry in loop.optimizer.state.values()]
    found = ledger(step, modules=[loop.model], batch=(loop.batch(0), state))
    return found.peak_bytes


def difference_of(eager: Trained, ours: Trained) -> str:
    """The first thing that is not the same, or nothing."""
    if odd := sorted(eager.values.keys() ^ ours.values.keys()):
        side = "without" if odd[0] in eager.values else "with"
        return f"{odd[0]} is there only {side} lowtide ({len(odd)} such)"
    differ = [n for n, v in eager.values.items() if not same_bits(v, ours.values[n])]
    if differ:
        name = differ[0]
        where = first_difference(eager.values[name], ours.values[name])
        return f"{name}: {where}; {len(differ)} of {len(eager.values)} tensors"
    for name, state in eager.streams.items():
        if state != ours.streams[name]:
            return name
    return ""


def write_warnings(caught: list[warnings.WarningMessage], record: Record) -> None:
    """Lowtide's own warnings, and the others that name where they come from."""
    texts = [
        " ".join(str(w.message).split())
        for w in caught
        if issubclass(w.category, LowtideWarning)
    ]
    record["warnings"] = list(dict.fromkeys(texts))


def write_plan(model: Any, record: Record) -> None:
    """How the model runs now."""
    call = planned(model)
    if call is None:
        return
    record |= {
        "graphs": call.watch.graphs,
        "left": [" ".join(reason.split()) for reason in call.watch.left],
        "plans": len(call.plans),
        "promised_bytes": call.planning.promised_bytes,
        "forwards": call.watch.forwards,
        "backwards": call.watch.backwards,
        "predicted_peak_bytes": max((p.peak_bytes for p in call.plans), default=None),
        "predicted_eager_peak_bytes": max(
            (s.eager_peak_bytes for s in call.steps), default=None
        ),
        "predicted_overhead": max((p.overhead for p in call.plans), default=None),
    }


def one_line(error: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}"


def place_of(error: BaseException) -> str:
    """The innermost line of lowtide's that an exception came through, and the last."""
    entries: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        entries.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}")
        if "/lowtide/" not in code.co_filename and trace.tb_next is not None:
            entries.pop()
        trace = trace.tb_next
    return " ".join(entries[-3:])
