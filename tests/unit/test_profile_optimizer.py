"""The optimizer as part of the step: its state, its update, its temporaries."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook

from lowtide import planners, simulate
from lowtide.engine.costs import optimizer as optimizer_module
from lowtide.engine.costs.living import living
from lowtide.engine.costs.optimizer import update_bytes, with_optimizer
from lowtide.errors import InvalidArgumentError
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import with_frees

# Two parameters of 64 x 64 and 64 floats, whose gradients are alive at the end.
BYTES = 4 * (64 * 64 + 64)


@pytest.fixture
def step():
    step = StepGraph.from_text(
        """
        resident w 16384
        resident b 256
        resident x 16
        y      = f(w, b, x)  64 bytes        1 s
        turn(y) -> d         4 bytes
        dw, db = back(x, d)  16384 256 bytes 2 s
        -> dw, db
        """
    )
    shapes = {"w": (64, 64), "b": (64,), "dw": (64, 64), "db": (64,)}
    names = {"dw": "grad of weight", "db": "grad of bias", "w": "weight", "b": "bias"}
    data = step.to_dict()
    for s in data["storages"]:
        s["shape"] = list(shapes.get(s["name"], ()))
        s["name"] = names.get(s["name"], s["name"])
    return StepGraph.from_dict(data)


def model():
    return torch.nn.Linear(64, 64)


def added(before, after):
    return after.storages[len(before.storages) :], after.ops[len(before.ops) :]


OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), 0),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
    "momentum foreach": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        1,
    ),
    "momentum fused": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
        1,
    ),
    "adam": (lambda p: torch.optim.Adam(p), 2),
    "adam foreach": (lambda p: torch.optim.Adam(p, foreach=True), 2),
    "adamw": (lambda p: torch.optim.AdamW(p), 2),
    "adamw fused": (lambda p: torch.optim.AdamW(p, fused=True), 2),
    "adamw amsgrad": (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_resident_and_the_update_is_ops(step, name):
    make, copies = OPTIMIZERS[name]
    module = model()
    full = with_optimizer(step, make(module.parameters()), model=module, how="estimate")
    storages, ops = added(step, full)
    state = [s for s in storages if s.kind == "optimizer_state"]
    assert all(s.resident for s in state)
    counts = [s.nbytes for s in state if not s.shape]  # how often each has been updated
    assert sum(s.nbytes for s in state) - sum(counts) == copies * BYTES
    assert ops
    assert all(op.phase == "optimizer" and op.once and op.seconds > 0 for op in ops)
    assert full.shares()["optimizer"] > 0
    # Reads are the very parameters and gradients of the step.
    read = {full.storages[s].name for op in ops for s in op.reads}
    assert {"weight", "bias", "grad of weight", "grad of bias"} <= read
    simulate(full, with_frees(full, full.baseline))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_predicted_update_holds_what_the_real_one_does(step, name):
    from lowtide.engine.costs.ledger import ledger

    make, _ = OPTIMIZERS[name]
    module = model()
    optimizer = make(module.parameters())
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    full = with_optimizer(step, optimizer, model=module, how="estimate")
    optimizer.step()
    state = [list(entries.values()) for entries in optimizer.state.values()]
    found = ledger(optimizer.step, modules=[module], batch=state)
    during = [r.live_during_bytes for r in full.op_records() if r.phase == "optimizer"]
    outside = 16 + 64  # x and y, which the module does not have
    known = sum(full.storages[s].nbytes for s in full.outputs) + full.resident_bytes
    made = max(during) - known
    assert made - outside <= found.peak_bytes - found.resident_bytes + 64
    assert made + 64 >= found.peak_bytes - found.resident_bytes


def test_foreach_holds_temporaries_of_all_parameters_at_once(step):
    module = model()
    forms = {
        form: with_optimizer(
            step,
            torch.optim.Adam(module.parameters(), foreach=form),
            model=module,
            how="estimate",
        )
        for form in (False, True)
    }
    held = {}
    for form, full in forms.items():
        storages, _ = added(step, full)
        peak = max(
            r.live_during_bytes for r in full.op_records() if r.phase == "optimizer"
        )
        outputs = sum(full.storages[s].nbytes for s in full.outputs)
        held[form] = peak - full.resident_bytes - outputs
        assert any(s.kind == "temporary" for s in storages)
    # One by one: the root and the quotient of the larger parameter. Together: those
    # of both, where the quotient replaces the root in place.
    assert held[False] == 2 * 4 * 64 * 64
    assert held[True] == BYTES


def test_the_optimizer_itself_is_not_touched(step):
    module = model()
    optimizer = torch.optim.AdamW(module.parameters())
    called = []
    optimizer.register_step_pre_hook(lambda *args: called.append(args))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = [p.detach().clone() for p in module.parameters()]
    with_optimizer(step, optimizer, model=module, how="estimate")
    assert not optimizer.state
    assert called == []
    assert all(map(torch.equal, before, module.parameters()))
    assert all(p.grad is None for p in module.parameters())


def test_a_model_that_does_not_exist_has_an_optimizer_too(step):
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.empty(64, 64, device="cuda"))
        module.bias = torch.nn.Parameter(torch.empty(64, device="cuda"))
        optimizer = torch.optim.AdamW(module.parameters())
    full = with_optimizer(step, optimizer, model=module, how="estimate", device="h100")
    _, ops = added(step, full)
    # On a GPU torch updates all parameters together.
    assert any("_foreach" in op.target for op in ops)
    assert len(ops) < 20


def test_measured_updates_cost_real_time(step):
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    full = with_optimizer(step, optimizer, model=module, cache=False)
    _, ops = added(step, full)
    assert all(0 < op.seconds < 0.1 for op in ops)


def test_an_optimizer_that_needs_a_closure_is_refused(step):
    module = model()
    with pytest.raises(InvalidArgumentError, match="closure"):
        with_optimizer(step, torch.optim.LBFGS(module.parameters()), how="estimate")


def test_planners_work_around_the_update(step):
    module = model()
    optimizer = torch.optim.Adam(module.parameters())
    full = with_optimizer(step, optimizer, model=module, how="estimate")
    for name in ("keep_all", "chen_sqrt", "auto"):
        plan = planners.load(name).plan(full, budget_bytes=full.baseline_peak_bytes)
        assert plan.peak_bytes <= full.baseline_peak_bytes


def test_hooks_on_all_optimizers_are_left_alone():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    seen = []
    hook = register_optimizer_step_post_hook(lambda *_: seen.append(1))
    try:
        assert update_bytes(optimizer).state > 2 * model.weight.nbytes
    finally:
        hook.remove()
    assert seen == []


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_many_equal_parameters_have_the_state_of_all_of_them(kind, foreach):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    model[0].weight.requires_grad_(False)
    optimizer = kind(model.parameters(), foreach=foreach)
    predicted = update_bytes(optimizer).state
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    entries = [v for entry in optimizer.state.values() for v in entry.values()]
    assert predicted == sum(v.untyped_storage().nbytes() for v in entries)
    assert update_bytes(optimizer).state == predicted


def test_what_is_left_of_the_parameter_before_counts():
    from lowtide.engine.costs.ledger import ledger

    model = torch.nn.Sequential(
        *(torch.nn.Linear(64, 64, bias=place % 2 == 0) for place in range(4))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    state = [list(entries.values()) for entries in optimizer.state.values()]
    found = ledger(optimizer.step, modules=[model], batch=state)
    # The quotient of a matrix is still there when the next makes a root and a quotient.
    assert update_bytes(optimizer).temporaries == 3 * 4 * 64 * 64
    assert abs(found.peak_bytes - found.resident_bytes - 3 * 4 * 64 * 64) < 64


def test_an_update_is_watched_once_and_again_when_something_changes(monkeypatch):
    seen: list[int] = []
    watch = optimizer_module._watch
    monkeypatch.setattr(
        optimizer_module, "_watch", lambda *a: seen.append(1) or watch(*a)
    )
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = update_bytes(optimizer)
    optimizer.param_groups[0]["lr"] = 0.05
    assert update_bytes(optimizer) == plain
    assert len(seen) == 1
    optimizer.param_groups[0]["momentum"] = 0.9
    assert update_bytes(optimizer).state > plain.state
    assert len(seen) == 2


class _Lazy:
    """Loads something heavy when it is asked what it is."""

    @property
    def __class__(self):
        raise AssertionError("asked")


def test_living_objects_are_found_by_their_kind_alone():
    class Own(torch.optim.SGD):
        pass

    lazy = _Lazy()
    optimizer = Own([torch.zeros(1, requires_grad=True)])
    assert any(found is optimizer for found in living(torch.optim.Optimizer))
    assert [found is optimizer for found in living(Own)] == [True]
    assert [found is lazy for found in living(_Lazy)] == [True]
