"""The optimizer as part of the step: its state as residents, its update as ops.

The update is not described here, it is watched: a copy of the optimizer with fake
parameters takes two steps, the first of which makes the state, and every call of the
second is written down with the storages it reads, makes and frees. So any optimizer
written in torch is covered, with the temporaries of its form (one parameter at a time,
foreach, fused), and nothing is allocated.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.engine.capture.call import Call
from lowtide.engine.costs.cache import Caching
from lowtide.engine.costs.cost import Cost, How
from lowtide.engine.costs.prices import Progress, costs
from lowtide.errors import InvalidArgumentError
from lowtide.step.graph import Op, Region, StepGraph, Storage, check_graph

_ONCE = "is part of the optimizer's update"


def with_optimizer(
    step: StepGraph,
    optimizer: torch.optim.Optimizer,
    *,
    model: torch.nn.Module | None = None,
    how: How = "measure",
    device: str | torch.device | None = None,
    cache: Caching = True,
    progress: Progress | None = None,
) -> StepGraph:
    """The step followed by one update of this optimizer.

    The optimizer's state becomes resident storages and its update ops of the phase
    "optimizer", costed like all others. The optimizer itself is not touched.

    Args:
        step: A step whose gradients are still alive at its end.
        optimizer: Any optimizer written in torch; its parameters may be fake.
        model: Gives the parameters their names, by which they are found in the step;
            without it they are matched by shape, in order.
        how: As for `costs`, and so are `device`, `cache` and `progress`.

    Raises:
        InvalidArgumentError: The optimizer needs a closure, or cannot take a step.
    """
    update = _watch(optimizer)
    if not update.calls:
        return step
    prices = costs(
        [c.call for c in update.calls],
        how=how,
        device=device,
        cache=cache,
        progress=progress,
    )
    return _append(step, update, _match(step, update, model), prices)


@dataclass(slots=True)
class _Seen:
    """One call of the update, by the keys of the storages it touches."""

    call: Call
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(slots=True)
class _Update:
    """A watched update. Keys are those of fake storages, which `alive` keeps unique."""

    parameters: list[tuple[torch.Tensor, FakeTensor, FakeTensor]]
    state: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    calls: list[_Seen] = field(default_factory=list)
    made: dict[int, torch.Tensor] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)


def state_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Bytes of optimizer state: what is there, or what its first step will make.

    An optimizer whose step needs a closure is taken as it is.
    """
    if optimizer is None:
        return 0
    present = {_key(v): v for v in _tensors(list(optimizer.state.values()))}
    if not present:
        try:
            present = {k: v for k, (_, v) in _watch(optimizer).state.items()}
        except InvalidArgumentError:
            return 0
    return sum(v.untyped_storage().nbytes() for v in present.values())


def _watch(optimizer: torch.optim.Optimizer) -> _Update:
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    double, parameters = _double(optimizer, mode)
    update = _Update(parameters)
    try:
        with _WithoutResult():
            double.step()
        update.state = _state(double, parameters)
        with _Watcher(update):
            double.step()
    except (TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgumentError(
            f"optimizer={type(optimizer).__name__}",
            f"its update needs a closure or decides by values ({reason})",
            "Profile without it, and leave room for its state beside the budget",
        ) from error
    return update


def _double(
    optimizer: torch.optim.Optimizer, mode: FakeTensorMode
) -> tuple[torch.optim.Optimizer, list[tuple[torch.Tensor, FakeTensor, FakeTensor]]]:
    """The same optimizer over fake parameters, with none of the user's hooks."""
    double: Any = object.__new__(type(optimizer))
    double.__dict__.update(optimizer.__dict__)
    # A learning-rate scheduler puts its own step over the class's.
    double.__dict__.pop("step", None)
    for name in list(double.__dict__):
        if name.endswith("_hooks"):
            double.__dict__[name] = OrderedDict()
    twins: dict[int, tuple[torch.Tensor, FakeTensor, FakeTensor]] = {}
    double.param_groups = []
    for group in optimizer.param_groups:
        trained = [p for p in group["params"] if p.requires_grad]
        for p in trained:
            twins[id(p)] = (p, _fake(p, mode), _fake(p, mode))
            twins[id(p)][1].grad = twins[id(p)][2]
        fakes = [twins[id(p)][1] for p in trained]
        double.param_groups.append({**group, **_form(group, trained), "params": fakes})
    double.state = defaultdict(dict)
    for p, twin, _ in twins.values():
        if p in optimizer.state:
            double.state[twin] = {
                k: _fake_state(v, mode) for k, v in optimizer.state[p].items()
            }
    return double, list(twins.values())


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
    # Step counts are read as numbers, so they stay real.
    if value.dim() == 0 and not isinstance(value, FakeTensor):
        return value.detach().clone()
    if value.dim() == 0:
        return torch.ones((), dtype=value.dtype)
    return _fake(value, mode)


def _state(
    double: torch.optim.Optimizer,
    parameters: list[tuple[torch.Tensor, FakeTensor, FakeTensor]],
) -> dict[int, tuple[str, torch.Tensor]]:
    """Every storage of the optimizer's state, named after its entry and parameter."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    places = {id(twin): number for number, (_, twin, _) in enumerate(parameters)}
    for owner, entries in double.state.items():
        for name, value in entries.items():
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, torch.Tensor):
                    label = f"{name} of {places.get(id(owner), '?')}"
                    found[_key(leaf)] = (label, leaf)
    return found


class _WithoutResult(TorchDispatchMode):
    """Passes over ops on fake tensors that only change them.

    NOTE(torch>=2.13): some fused updates have no fake form, and there is nothing that
    one could tell: they return nothing.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        fake = any(isinstance(t, FakeTensor) for t in _tensors((args, kwargs or {})))
        if fake and func._schema.is_mutable and not func._schema.returns:
            return None
        return func(*args, **(kwargs or {}))


class _Watcher(_WithoutResult):
    """Writes down every call that makes or changes bytes."""

    def __init__(self, update: _Update) -> None:
        super().__init__()
        self.update = update
        self.known = {k for k in update.state}
        for _, twin, gradient in update.parameters:
            self.known.update((_key(twin), _key(gradient)))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        given = _tensors((args, kwargs or {}))
        # What a real constant of the optimizer's own lends its bytes to is not made.
        old = self.known.union(map(_key, given))
        made = [t for t in _tensors(result) if _key(t) not in old]
        if not made and not func._schema.is_mutable:
            return result  # a view
        self.update.alive.append((given, result))
        reads = dict.fromkeys(_key(t) for t in given if _key(t) in self.known)
        for t in made:
            self.known.add(_key(t))
            self.update.made[_key(t)] = t
        call = Call(func, args, kwargs or {}, result, _signature(func, args, kwargs))
        writes = tuple(dict.fromkeys(_key(t) for t in made))
        self.update.calls.append(_Seen(call, tuple(reads), writes))
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _signature(func: Any, args: Any, kwargs: Any) -> str:
    def show(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            return f"{dtype}{list(value.shape)}{value.stride()}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(show(v) for v in value) + "]"
        # Step sizes differ from step to step and decide nothing about the cost.
        return "number" if isinstance(value, float) else str(value)

    arguments = [show(a) for a in args]
    arguments += [f"{k}={show(v)}" for k, v in (kwargs or {}).items()]
    return f"{func}({', '.join(arguments)})"


def _match(
    step: StepGraph, update: _Update, model: torch.nn.Module | None
) -> dict[int, int]:
    """For the key of each fake parameter and gradient, its storage in the step.

    Parameters that the step does not know (another model's, or frozen) get none.
    """
    names = (
        {id(p): n for n, p in model.named_parameters(remove_duplicate=False)}
        if model is not None
        else {}
    )
    found: dict[int, int] = {}
    taken: set[int] = set()
    for parameter, twin, gradient in update.parameters:
        name = names.get(id(parameter), "")
        for key, kind, wanted in (
            (_key(twin), "parameter", name),
            (_key(gradient), "gradient", f"grad of {name}"),
        ):
            place = _find(step, kind, wanted, tuple(parameter.shape), taken)
            if place is not None:
                found[key] = place
                taken.add(place)
    return found


def _find(
    step: StepGraph, kind: str, name: str, shape: tuple[int, ...], taken: set[int]
) -> int | None:
    free = [s for s in step.storages if s.kind == kind and s.id not in taken]
    for s in free:
        if s.name == name:
            return s.id
    # Gradients are made in about the reverse order, but equal shapes cost the same.
    return next((s.id for s in free if s.shape == shape), None)


def _append(
    step: StepGraph, update: _Update, place: dict[int, int], prices: list[Cost]
) -> StepGraph:
    storages = list(step.storages)

    def add(key: int, name: str, tensor: torch.Tensor, kind: Any, stays: bool) -> None:
        place[key] = len(storages)
        storages.append(
            Storage(
                id=len(storages),
                name=name,
                nbytes=int(tensor.untyped_storage().nbytes()),
                kind=kind,
                resident=stays,
                shape=tuple(int(d) for d in tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
            )
        )

    for number, (_, twin, gradient) in enumerate(update.parameters):
        if _key(twin) not in place:
            add(_key(twin), f"parameter {number}", twin, "parameter", True)
        if _key(gradient) not in place:
            add(_key(gradient), f"grad of {number}", gradient, "gradient", True)
    named = {
        str(number): storages[place[_key(twin)]].name
        for number, (_, twin, _) in enumerate(update.parameters)
    }
    for key, (label, tensor) in update.state.items():
        entry, _, owner = label.rpartition(" of ")
        name = f"{entry} of {named.get(owner, owner)}"
        add(key, name, tensor, "optimizer_state", True)
    for key, tensor in update.made.items():
        add(key, f"optimizer temporary {len(storages)}", tensor, "temporary", False)
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
