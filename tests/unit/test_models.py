"""The built-in models: what they are, that they train, and that fakes cost nothing."""

import resource
import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import FakeTensor

from lowtide import models
from lowtide.errors import InvalidArgumentError, LowtideError, MissingPackageError
from lowtide.models import _libraries

# Small enough for a step of most models in well under a second. Only those options that
# a model has are used.
TINY = {
    "batch": 2,
    "image": 32,
    "layers": 2,
    "width": 32,
    "heads": 2,
    "kv_heads": 1,
    "intermediate": 48,
    "vocab": 61,
    "sequence": 12,
    "target": 8,
    "positions": 16,
    "patch": 16,
    "classes": 7,
}
# What the network cannot go below, or where a small width is not a smaller model.
TINY_OF = {
    "alexnet": {"image": 64},
    "inception_v3": {"image": 75},
    "resnet50": {"width": 64},
    "resnet101": {"width": 64},
    "resnet152": {"width": 64},
    "unet": {"width": 4},
}
# Their classifiers or their depth cannot be shrunk.
SLOW = {
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "resnet101",
    "resnet152",
    "densenet161",
    "densenet169",
    "densenet201",
}
EACH = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in models.available()
]
# Counts that the papers or the libraries' documentation state for the standard sizes.
KNOWN_PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
    "mobilenet_v3_large": 5_483_032,
    "convnext_tiny": 28_589_128,
    "unet": 31_037_698,
    "vit": 22_050_664,
    "vit_base": 86_567_656,
    "gpt2": 124_439_808,
    "t5": 60_506_624,
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """On a busy machine, threads that wait for each other cost most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny(name: str, **options: object) -> models.Example:
    has = {option.name for option in models.describe(name).options}
    sizes = {key: value for key, value in TINY.items() if key in has}
    return models.build(name, **{**sizes, **TINY_OF.get(name, {}), **options})


def loss_of(example: models.Example) -> torch.Tensor:
    match example.batch:
        case dict() as named:
            output = example.model(**named)
        case tuple() as positional:
            output = example.model(*positional)
        case tensor:
            output = example.model(tensor)
    return output.loss if example.loss is None else example.loss(output)


def num_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_gradients(example: models.Example) -> None:
    loss = loss_of(example)
    assert loss.shape == ()
    loss.backward()
    for name, parameter in example.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", EACH)
def test_a_step_gives_every_parameter_a_finite_gradient(name: str) -> None:
    example = tiny(name)
    assert example.model.training
    check_gradients(example)


@pytest.mark.parametrize("name", models.available())
def test_default_size_is_the_described_one(name: str) -> None:
    model = models.build(name, device="meta").model
    description = models.describe(name)
    assert num_parameters(model) == description.num_parameters
    assert KNOWN_PARAMETERS.get(name, description.num_parameters) == num_parameters(
        model
    )


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("1b", 1_235_814_400),
        ("8b", 8_030_261_248),
        ("70b", 70_553_706_496),
        ("405b", 405_853_388_800),
    ],
)
def test_llama_sizes_have_the_published_counts(size: str, count: int) -> None:
    assert (
        num_parameters(models.build("llama", size=size, device="meta").model) == count
    )


@pytest.mark.parametrize("name", EACH)
def test_builds_in_a_fake_tensor_mode_without_memory(name: str) -> None:
    example = models.build_fake(name)
    batch = example.batch
    inputs = batch.values() if isinstance(batch, dict) else [batch]
    for tensor in (*example.model.state_dict().values(), *inputs):
        assert isinstance(tensor, FakeTensor)


@pytest.mark.parametrize("name", ["resnet18", "vit", "gpt2", "t5"])
def test_a_step_runs_on_fake_tensors(name: str) -> None:
    with FakeTensorMode():
        example = tiny(name)
        loss_of(example).backward()
        assert all(p.grad is not None for p in example.model.parameters())


def test_seventy_billion_parameters_take_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FakeTensorMode():
        model = models.build(
            "llama",
            batch=1,
            layers=80,
            hidden=8192,
            heads=64,
            kv_heads=8,
            intermediate=28672,
            vocab=128256,
            sequence=8192,
            dtype="bf16",
        ).model
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert num_parameters(model) == 70_553_706_496
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert grown_kib < 256 * 1024


def test_follows_the_default_device_and_the_device_option() -> None:
    with torch.device("meta"):
        assert tiny("tiny_gpt").batch.is_meta
        assert tiny("tiny_gpt", device="cpu").batch.device.type == "cpu"
    given = tiny("gpt2", device=torch.device("meta"))
    assert all(tensor.is_meta for tensor in given.batch.values())
    assert all(parameter.is_meta for parameter in given.model.parameters())


@pytest.mark.parametrize("name", ["mlp", "tiny_gpt", "unet", "resnet18", "gpt2", "vit"])
def test_the_seed_decides_weights_and_data(name: str) -> None:
    def tensors(seed: int) -> list[torch.Tensor]:
        example = tiny(name, seed=seed)
        batch = example.batch
        inputs = batch.values() if isinstance(batch, dict) else [batch]
        return [*example.model.state_dict().values(), *inputs]

    torch.manual_seed(5)
    first = tensors(0)
    torch.manual_seed(6)
    again = tensors(0)
    other = tensors(1)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[-1], other[-1])


def test_building_leaves_the_callers_settings_alone() -> None:
    state = torch.get_rng_state()
    tiny("tiny_gpt", dtype="bfloat16", seed=3)
    with pytest.raises(InvalidArgumentError):
        tiny("tiny_gpt", dtype="bfloat16", heads=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("name", ["mlp", "unet", "gpt2", "llama"])
def test_dtype_reaches_the_weights(name: str) -> None:
    example = tiny(name, dtype=torch.bfloat16)
    assert {p.dtype for p in example.model.parameters()} == {torch.bfloat16}
    check_gradients(example)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "llama", "vit"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_kernel_is_the_one_asked_for(name: str, attention: str) -> None:
    example = tiny(name, attention=attention)
    assert example.model.config._attn_implementation == attention
    kernels = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.nn.functional.scaled_dot_product_attention:
                kernels.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        loss_of(example)
    assert bool(kernels) == (attention == "sdpa")


def test_language_models_are_one_graph() -> None:
    # GPT-2 in particular: its fallback for the loss breaks the graph on a first step.
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    example = tiny("gpt2")
    torch._dynamo.reset()
    torch.compile(lambda batch: example.model(**batch).loss, backend=backend)(
        example.batch
    )
    torch._dynamo.reset()
    assert len(graphs) == 1


def test_sum_loss_and_batch_norm() -> None:
    summed = tiny("resnet18", loss="sum")
    torch.testing.assert_close(
        summed.loss(torch.ones(2, 7)), torch.tensor(14.0), rtol=0, atol=0
    )
    with_norm = models.build("vgg11", batch_norm=True, device="meta").model
    assert num_parameters(with_norm) == 132_868_840


@pytest.mark.slow
def test_auxiliary_heads_train_too() -> None:
    example = tiny("inception_v3", auxiliary=True, image=299)
    assert len(example.model(example.batch)) == 2
    check_gradients(example)


def test_aliases_name_the_same_model() -> None:
    assert models.describe("vit_small") is models.describe("vit")
    assert models.describe("mobilenet") is models.describe("mobilenet_v3_large")
    assert not set(models.ALIASES) & set(models.available())


def test_unknown_model_names_those_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match=r"did you mean resnet50.*gpt2"):
        models.build("resnet_50")


def test_unknown_option_names_those_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'layer'.*vocab=50257, layers=12"):
        models.build("gpt2", layer=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", {"layers": 0}, "whole number from 1 up; the default is 12"),
        ("gpt2", {"layers": 2.5}, "whole number"),
        ("gpt2", {"layers": True}, "whole number"),
        ("gpt2", {"dropout": 1.5}, "from 0 to 1"),
        ("gpt2", {"dtype": "int8"}, "float32, bfloat16"),
        ("gpt2", {"attention": "flash"}, "sdpa, eager"),
        ("gpt2", {"heads": 7}, "multiple of 7"),
        ("gpt2", {"hidden": 8, "width": 8}, "two words for one option"),
        ("llama", {"kv_heads": 3}, "divisor of 8"),
        ("mlp", {"device": "gpu"}, "cpu, cuda or meta"),
        ("vit", {"image": 100}, "multiple of 16"),
        ("unet", {"image": 100}, "multiple of 16"),
        ("inception_v3", {"image": 64}, "from 75 up"),
        ("inception_v3", {"image": 96, "auxiliary": True}, "299 pixels"),
    ],
)
def test_bad_values_say_what_to_use(name: str, options: dict, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        models.build(name, **options)


def test_options_read_text_from_a_command_line() -> None:
    option = models.describe("vgg16").option
    assert option("batch").parse("16") == 16
    assert option("dropout").parse("0.1") == 0.1
    assert option("batch_norm").parse("true") is True
    assert option("dtype").parse("bfloat16") == "bfloat16"
    with pytest.raises(InvalidArgumentError, match="true or false"):
        option("batch_norm").parse("maybe")
    with pytest.raises(InvalidArgumentError, match="whole number"):
        option("batch").parse("many")


def test_listing_models_needs_no_torch() -> None:
    program = (
        "import sys, lowtide.models as m\n"
        "assert m.available()\n"
        "assert all(m.describe(name).summary for name in m.available())\n"
        "assert not {'torch', 'torchvision', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.real
@pytest.mark.slow
def test_torchvision_is_mended_only_where_it_is_broken() -> None:
    # In a process of its own: an import can be made to fail only once.
    program = (
        "try:\n"
        "    import torchvision\n"
        "    broken = False\n"
        "except RuntimeError:\n"
        "    broken = True\n"
        "from lowtide.models import _libraries\n"
        "assert _libraries.torchvision_models().resnet18\n"
        "assert _libraries.transformers().GPT2Config\n"
        "assert bool(_libraries._declared) == broken\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_libraries, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install") as caught:
        _libraries.transformers.__wrapped__()
    assert isinstance(caught.value, LowtideError)
