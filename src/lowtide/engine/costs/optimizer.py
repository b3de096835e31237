"""The optimizer as part of the step: its state as residents, its update as ops.

The update is not described here, it is watched: a copy of the optimizer with fake
parameters takes two steps, the first of which makes the state, and every call of the
second is written down with the storages it reads, makes and frees. So any optimizer
written in torch is covered, with the temporaries of its form (one parameter at a time,
foreach, fused), and nothing is allocated.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple, Unpack

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.engine.capture.call import Call, show_tensor, signature_of
from lowtide.engine.capture.tensors import (
    bytes_in,
    storage_key,
    storage_record,
    tensors_in,
)
from lowtide.engine.costs.cost import Cost
from lowtide.engine.costs.prices import Pricing, costs
from lowtide.errors import InvalidArgumentError
from lowtide.step.graph import Kind, Op, Region, StepGraph, check_graph

_ONCE = "is part of the optimizer's update"


def with_optimizer(
    step: StepGraph,
    optimizer: torch.optim.Optimizer,
    *,
    model: torch.nn.Module | None = None,
    **pricing: Unpack[Pricing],
) -> StepGraph:
    """The step followed by one update of this optimizer.

    The optimizer's state becomes resident storages and its update ops of the phase
    "optimizer", costed like all others. The optimizer itself is not touched.

    Args:
        step: A step whose gradients are still alive at its end.
        optimizer: Any optimizer written in torch; its parameters may be fake.
        model: Gives the parameters their names, by which they are found in the step;
            without it they are matched by shape, in order.
        pricing: As for `costs`.

    Raises:
        InvalidArgumentError: The optimizer needs a closure, or cannot take a step.
    """
    update = _watch(optimizer)
    if not update.calls:
        return step
    prices = costs([c.call for c in update.calls], **pricing)
    return _append(step, update, _match(step, update, model), prices)


class _Seen(NamedTuple):
    """One call of the update, by the keys of the storages it touches."""

    call: Call
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class _Trained(NamedTuple):
    """A parameter that is trained, and the fakes of it and of its gradient."""

    parameter: torch.Tensor
    fake: Any
    gradient: Any


class _State(NamedTuple):
    """An entry of the optimizer's state, and the fake parameter that it is for."""

    name: str
    owner: Any
    tensor: torch.Tensor


@dataclass(slots=True)
class _Update:
    """A watched update. Keys are those of fake storages, which `alive` keeps unique.

    `ends` is, for the storage of each result, how many calls came before its end.
    """

    trained: list[_Trained]
    state: dict[int, _State] = field(default_factory=dict)
    calls: list[_Seen] = field(default_factory=list)
    made: dict[int, torch.Tensor] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)


class UpdateBytes(NamedTuple):
    """What an optimizer needs: its state all the time, more while it updates."""

    state: int
    temporaries: int


_KNOWN: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[str, UpdateBytes]] = (
    weakref.WeakKeyDictionary()
)


def update_bytes(optimizer: torch.optim.Optimizer) -> UpdateBytes:
    """Bytes of the state that is there or will be made, and of the update's results.

    An optimizer whose step needs a closure is taken as it is. What was found once is
    kept for as long as nothing changes that could decide it: to watch an update takes
    longer than to run it.
    """
    decisive = _decisive(optimizer)
    if _KNOWN.get(optimizer, ("",))[0] != decisive:
        _KNOWN[optimizer] = decisive, _watched_bytes(optimizer)
    return _KNOWN[optimizer][1]


def _decisive(optimizer: torch.optim.Optimizer) -> str:
    """What the bytes of an update depend on; of numbers, whether they are zero."""
    found: list[Any] = []
    for group in optimizer.param_groups:
        for name, value in group.items():
            is_number = isinstance(value, int | float)
            if is_number or isinstance(value, str | None):
                found.append((name, bool(value) if is_number else value))
        parameters = group["params"]
        found += [(id(p), p.requires_grad, p in optimizer.state) for p in parameters]
    return str(found)


def _watched_bytes(optimizer: torch.optim.Optimizer) -> UpdateBytes:
    alike = _alike(optimizer)
    try:
        update = _watch(optimizer, alike)
    except InvalidArgumentError:
        return UpdateBytes(bytes_in(list(optimizer.state.values())), 0)
    last = {key: n for n, seen in enumerate(update.calls) for key in seen.reads}
    live = highest = 0
    for number, seen in enumerate(update.calls):
        live += bytes_in([update.made[key] for key in seen.writes])
        highest = max(highest, live)
        done = [k for k in (*seen.reads, *seen.writes) if last.get(k, -1) <= number]
        live -= bytes_in([update.made[k] for k in done if k in update.made])
    times = {id(t.fake): alike[id(t.parameter)] for t in update.trained}
    state = sum(
        times.get(id(entry.owner), 1) * entry.tensor.untyped_storage().nbytes()
        for entry in update.state.values()
    )
    return UpdateBytes(state, highest)


def _alike(optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """Parameters to watch, by id, and how many there are like each of them.

    Torch's own optimizers, in their plain form, take one parameter after the other, and
    do the same with all that are alike; what they made for the one before is still held
    for a while. So both are watched where a kind follows another for the first time. Of
    other optimizers nothing is known.
    """
    is_own = type(optimizer).__module__.startswith("torch.optim.")
    kinds: dict[int, Any] = {}
    for number, group in enumerate(optimizer.param_groups):
        form = {**group, **_form(group, group["params"])}
        is_plain = is_own and not form.get("foreach") and not form.get("fused")
        for p in (p for p in group["params"] if p.requires_grad):
            kind = number, p.shape, p.stride(), p.dtype, p.device, p in optimizer.state
            kinds[id(p)] = kind if is_plain else id(p)
    order = [*kinds]
    first = {(kinds[a], kinds[b]): (a, b) for a, b in reversed([*pairwise(order)])}
    watched = dict.fromkeys([*order[:1], *chain(*first.values())], 1)
    num_watched = Counter(kinds[key] for key in watched)
    leaders = {kinds[key]: key for key in watched}
    for kind, count in Counter(kinds.values()).items():
        watched[leaders[kind]] += count - num_watched[kind]
    return watched


def _watch(
    optimizer: torch.optim.Optimizer, only: Container[int] | None = None
) -> _Update:
    """See an update, of all parameters or of those with these ids."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    double, trained = _double(optimizer, mode, only)
    update = _Update(trained)
    try:
        with _WithoutResult():
            step_without_hooks(double)
        update.state = {
            storage_key(leaf): _State(name, owner, leaf)
            for owner, entries in double.state.items()
            for name, value in entries.items()
            for leaf in tensors_in(value)
        }
        with _Watcher(update):
            step_without_hooks(double)
        # What a variable still holds when nobody reads it any more, such as that of the
        # parameter before, ends at a later call, as if that read it.
        for key, number in update.ends.items():
            seen = update.calls[number - 1]
            if key not in (*seen.reads, *seen.writes):
                update.calls[number - 1] = seen._replace(reads=(*seen.reads, key))
    except (TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgumentError(
            f"optimizer={type(optimizer).__name__}",
            f"its update needs a closure or decides by values ({reason})",
            "Profile without it, and leave room for its state beside the budget",
        ) from error
    return update


def step_without_hooks(optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's own step; hooks on all optimizers are for the user's steps."""
    step = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__  # type: ignore[attr-defined]
    step(optimizer)


def without_hooks(optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer like this one, without what belongs to the user's own steps."""
    made: Any = object.__new__(type(optimizer))
    made.__dict__.update(optimizer.__dict__)
    # A learning-rate scheduler puts its own step over the class's.
    made.__dict__.pop("step", None)
    for name in list(made.__dict__):
        if name.endswith("_hooks"):
            made.__dict__[name] = OrderedDict()
    return made


def _double(
    optimizer: torch.optim.Optimizer, mode: FakeTensorMode, only: Container[int] | None
) -> tuple[torch.optim.Optimizer, list[_Trained]]:
    """The same optimizer over fake parameters, with none of the user's hooks."""
    double = without_hooks(optimizer)
    trained: dict[int, _Trained] = {}
    double.param_groups = []
    for group in optimizer.param_groups:
        parameters = [
            p
            for p in group["params"]
            if p.requires_grad and (only is None or id(p) in only)
        ]
        for p in parameters:
            trained[id(p)] = _Trained(p, _fake(p, mode), _fake(p, mode))
            trained[id(p)].fake.grad = trained[id(p)].gradient
        fakes = [trained[id(p)].fake for p in parameters]
        form = _form(group, parameters)
        double.param_groups.append({**group, **form, "params": fakes})
    double.state = defaultdict(dict)
    for p, fake, _ in trained.values():
        if p in optimizer.state:
            double.state[fake] = {
                k: _fake_state(v, mode) for k, v in optimizer.state[p].items()
            }
    return double, list(trained.values())


def _form(group: Mapping[str, Any], params: list[torch.Tensor]) -> dict[str, Any]:
    """What torch would choose between foreach and not, which it refuses for fakes."""
    if "foreach" not in group or group["foreach"] is not None or group.get("fused"):
        return {}
    on_device = all(p.device.type in ("cuda", "xpu", "hpu") for p in params)
    return {"foreach": bool(params) and on_device, "fused": group.get("fused", False)}


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> Any:
    with mode:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )


def _fake_state(value: Any, mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim():
        return _fake(value, mode)
    # Step counts are read as numbers, so they stay real.
    is_fake = isinstance(value, FakeTensor)
    return torch.ones((), dtype=value.dtype) if is_fake else value.detach().clone()


class _WithoutResult(TorchDispatchMode):
    """Passes over ops on fake tensors that only change them.

    NOTE(torch>=2.13): some fused updates have no fake form, and there is nothing that
    one could tell: they return nothing.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        is_fake = any(isinstance(t, FakeTensor) for t in tensors_in((args, kwargs)))
        if is_fake and func._schema.is_mutable and not func._schema.returns:
            return None
        return func(*args, **(kwargs or {}))


class _Watcher(_WithoutResult):
    """Writes down every call that makes or changes bytes."""

    def __init__(self, update: _Update) -> None:
        super().__init__()
        self.update = update
        self.known = set(update.state)
        self.known.update(storage_key(t) for _, *fakes in update.trained for t in fakes)

    def note_end(self, key: int) -> None:
        """A tensor of this storage is held by nobody any more."""
        self.update.ends[key] = len(self.update.calls)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        given = {storage_key(t): t for t in tensors_in((args, kwargs))}
        # What a real constant of the optimizer's own lends its bytes to is not made.
        made = {
            key: t
            for t in tensors_in(result)
            if (key := storage_key(t)) not in self.known and key not in given
        }
        for t in tensors_in(result):
            if (key := storage_key(t)) in made or key in self.update.made:
                weakref.finalize(t, self.note_end, key).atexit = False
        if not made and not func._schema.is_mutable:
            return result  # a view
        # Aliases are held here, so that these end when the optimizer ends them.
        args, kwargs, held = pytree.tree_map_only(
            torch.Tensor, torch.Tensor.detach, (args, kwargs, result)
        )
        self.update.alive.append(held)
        reads = tuple(key for key in given if key in self.known)
        self.known.update(made)
        alike = {storage_key(t): t for t in tensors_in(held)}
        self.update.made.update((key, alike[key]) for key in made)
        call = Call(func, args, kwargs, held, signature_of(func, args, kwargs, _show))
        self.update.calls.append(_Seen(call, reads, tuple(made)))
        return result


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return show_tensor(value)
    # Step sizes differ from step to step and decide nothing about the cost.
    return "number" if isinstance(value, float) else str(value)


def _match(
    step: StepGraph, update: _Update, model: torch.nn.Module | None
) -> dict[int, int]:
    """For the key of each fake parameter and gradient, its storage in the step.

    Parameters that the step does not know (another model's, or frozen) get none.
    """
    named = model.named_parameters(remove_duplicate=False) if model is not None else ()
    names = {id(p): name for name, p in named}
    found: dict[int, int] = {}
    taken: set[int] = set()
    for parameter, fake, gradient in update.trained:
        name = names.get(id(parameter), "")
        for tensor, kind, wanted in (
            (fake, "parameter", name),
            (gradient, "gradient", f"grad of {name}"),
        ):
            free = [s for s in step.storages if s.kind == kind and s.id not in taken]
            # Gradients are made in about the reverse order, but equal shapes cost the
            # same.
            fitting = [s.id for s in free if s.name == wanted]
            fitting += [s.id for s in free if s.shape == tuple(parameter.shape)]
            if fitting:
                found[storage_key(tensor)] = fitting[0]
                taken.add(fitting[0])
    return found


def _append(
    step: StepGraph, update: _Update, place: dict[int, int], prices: list[Cost]
) -> StepGraph:
    storages = list(step.storages)

    def add(tensor: torch.Tensor, name: str, kind: Kind, *, stays: bool = True) -> None:
        key = storage_key(tensor)
        if key not in place:
            place[key] = len(storages)
            own = (place[key], name, tensor.untyped_storage().nbytes(), kind, stays)
            storages.append(storage_record(tensor, *own))

    for number, (_, fake, gradient) in enumerate(update.trained):
        add(fake, f"parameter {number}", "parameter")
        add(gradient, f"grad of {number}", "gradient")
    names = {
        id(t.fake): storages[place[storage_key(t.fake)]].name for t in update.trained
    }
    for entry, owner, tensor in update.state.values():
        add(tensor, f"{entry} of {names.get(id(owner), '?')}", "optimizer_state")
    for tensor in update.made.values():
        name = f"optimizer temporary {len(storages)}"
        add(tensor, name, "temporary", stays=False)
    ops = list(step.ops)
    for seen, cost in zip(update.calls, prices, strict=True):
        first = len(ops) == len(step.ops)
        target = str(seen.call.target)
        ops.append(
            Op(
                id=len(ops),
                name=f"{target.split('.')[1] if '.' in target else target}_{len(ops)}",
                target=target,
                reads=tuple(dict.fromkeys(place[k] for k in seen.reads)),
                writes=tuple(place[k] for k in seen.writes),
                seconds=cost.seconds,
                spread=cost.spread,
                scratch_bytes=cost.scratch_bytes,
                phase="optimizer",
                piece=-1,
                once=_ONCE,
                opens=len(step.regions) if first else -1,
                module="(optimizer)",
                signature=seen.call.signature,
            )
        )
    regions = (*step.regions, Region(-1, "optimizer"))
    complete = replace(step, ops=tuple(ops), storages=tuple(storages), regions=regions)
    check_graph(complete)
    return complete
