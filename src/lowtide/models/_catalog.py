"""Which models there are and which options each one takes. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lowtide.errors import InvalidArgumentError

DTYPES = ("float32", "bfloat16", "float16", "float64")
_DTYPE_SHORT = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp64": "float64",
}
# Libraries disagree on the word for the size of the residual stream; accept both.
_OPTION_SYNONYMS = {"hidden": "width"}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a built-in model.

    A `default` of None is worked out from the other options. `least` bounds a whole
    number from below.
    """

    name: str
    default: int | float | bool | str | None
    help: str
    kind: type
    choices: tuple[str, ...] = ()
    least: int = 1

    def parse(self, text: str) -> int | float | bool | str:
        """The value written as `text`, as it comes from a command line."""
        try:
            return _FLAGS[text.lower()] if self.kind is bool else self.kind(text)
        except (ValueError, KeyError):
            raise self._error(text) from None

    def check(self, value: Any) -> int | float | bool | str | None:
        """`value` if this option can take it, in its plain form."""
        if value is None:
            return self.default
        if self.name in ("dtype", "device"):
            # torch.bfloat16 and torch.device("meta") may stand for their names.
            value = str(value).removeprefix("torch.")
        if self.name == "dtype":
            value = _DTYPE_SHORT.get(value, value)
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind or not self._admits(value):
            raise self._error(value)
        return value

    def _admits(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.kind is float:
            return 0 <= value <= 1
        return self.kind is not int or value >= self.least

    def _error(self, value: object) -> InvalidArgumentError:
        if self.choices:
            expected = "one of " + ", ".join(self.choices)
        elif self.kind is int:
            expected = f"a whole number from {self.least} up"
        else:
            expected = {bool: "true or false", float: "a number from 0 to 1"}.get(
                self.kind, "a word"
            )
        return InvalidArgumentError(
            f"{self.name}={value!r}",
            f"{self.name} ({self.help}) cannot be this",
            f"Use {expected}; the default is {self.default}",
        )


@dataclass(frozen=True, slots=True)
class Description:
    """What a built-in model is: its origin, its size and its options.

    `num_parameters` holds at the default options. `maker` is `module:function` within
    this package.
    """

    name: str
    summary: str
    library: str
    num_parameters: int
    options: tuple[Option, ...]
    maker: str

    def option(self, name: str) -> Option:
        """The option of this name, or of the name it is a synonym for."""
        for option in self.options:
            if option.name in (name, _OPTION_SYNONYMS.get(name)):
                return option
        known = ", ".join(f"{option.name}={option.default}" for option in self.options)
        raise InvalidArgumentError(
            f"option {name!r} of model {self.name!r}",
            "there is no such option",
            f"Its options and their defaults are: {known}",
        )

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options by name: the given ones checked, the others at their default."""
        values: dict[str, Any] = {o.name: o.default for o in self.options}
        seen: dict[str, str] = {}
        for name, value in given.items():
            option = self.option(name)
            if option.name in seen:
                raise InvalidArgumentError(
                    f"{seen[option.name]} and {name} of model {self.name!r}",
                    "these are two words for one option",
                    "Give one of them",
                )
            seen[option.name] = name
            values[option.name] = option.check(value)
        return values


def available() -> tuple[str, ...]:
    """The names of all built-in models."""
    return tuple(_CATALOG)


def describe(name: str) -> Description:
    """What the named model is and which options it takes.

    Example:
        >>> describe("resnet50").num_parameters
        25557032
    """
    found = _CATALOG.get(ALIASES.get(name, name))
    if found is None:
        close = get_close_matches(name, (*_CATALOG, *ALIASES), n=1)
        aliases = ", ".join(f"{alias} = {full}" for alias, full in ALIASES.items())
        raise InvalidArgumentError(
            f"model {name!r}",
            "no built-in model has this name"
            + (f" (did you mean {close[0]}?)" if close else ""),
            f"There are: {', '.join(_CATALOG)} (also: {aliases})",
        )
    return found


ALIASES: Mapping[str, str] = {"vit_small": "vit", "mobilenet": "mobilenet_v3_large"}


def _batch(samples: int) -> Option:
    return Option("batch", samples, "samples in a batch", int)


def _integer(name: str, default: int | None, help: str, least: int = 1) -> Option:
    return Option(name, default, help, int, least=least)


def _fraction(name: str, default: float, help: str) -> Option:
    return Option(name, default, help, float)


def _flag(name: str, default: bool, help: str) -> Option:
    return Option(name, default, help, bool)


def _choice(name: str, default: str, help: str, choices: tuple[str, ...]) -> Option:
    return Option(name, default, help, str, choices)


_SHARED = (
    _choice("dtype", "float32", "type of weights and of real-valued inputs", DTYPES),
    Option("device", None, "where to build; default: torch's default device", str),
    _integer("seed", 0, "of the weights and of the data", least=0),
)
_DROPOUT = _fraction("dropout", 0.1, "chance of dropping a value")


def _image_options(
    batch: int, image: int, classes: int, least_image: int = 1
) -> tuple[Option, ...]:
    return (
        _batch(batch),
        _integer("image", image, "height and width in pixels", least_image),
        _integer("classes", classes, "number of classes"),
        _choice(
            "loss",
            "cross_entropy",
            "sum adds up the outputs, as published memory tables do",
            ("cross_entropy", "sum"),
        ),
    )


def _text_options(
    batch: int, sequence: int, vocab: int, layers: int, width: int, heads: int
) -> tuple[Option, ...]:
    return (
        _batch(batch),
        _integer("sequence", sequence, "tokens in a sample"),
        _integer("vocab", vocab, "number of different tokens"),
        _integer("layers", layers, "number of blocks"),
        _integer("width", width, "size of the residual stream (also: hidden)"),
        _integer("heads", heads, "attention heads"),
    )


_ATTENTION = _choice("attention", "sdpa", "attention kernel", ("sdpa", "eager"))


def _torchvision(
    name: str,
    summary: str,
    num_parameters: int,
    *extra: Option,
    image: int = 224,
    least_image: int = 1,
) -> Description:
    options = (*_image_options(8, image, 1000, least_image), *extra, *_SHARED)
    return Description(
        name,
        summary,
        "torchvision",
        num_parameters,
        options,
        "_vision:torchvision_model",
    )


def _vit(name: str, summary: str, num_parameters: int, width: int, heads: int):
    options = (
        _batch(8),
        _integer("image", 224, "height and width in pixels"),
        _integer("classes", 1000, "number of classes"),
        _integer("patch", 16, "height and width of a patch in pixels"),
        _integer("layers", 12, "number of blocks"),
        _integer("width", width, "size of the residual stream (also: hidden)"),
        _integer("heads", heads, "attention heads"),
        _integer("intermediate", None, "feed-forward width; default: 4 x width"),
        _fraction("dropout", 0.0, "chance of dropping a value"),
        _ATTENTION,
        *_SHARED,
    )
    return Description(
        name, summary, "transformers", num_parameters, options, "_transformers:vit"
    )


def _transformer(
    name: str, summary: str, num_parameters: int, *options: Option
) -> Description:
    return Description(
        name,
        summary,
        "transformers",
        num_parameters,
        (*options, _ATTENTION, *_SHARED),
        f"_transformers:{name}",
    )


_AUXILIARY = _flag("auxiliary", False, "train with the auxiliary classifier as well")


def _cells(name: str, summary: str, num_parameters: int) -> Description:
    options = (
        *_image_options(8, 32, 10, least_image=4),
        _integer("width", 36, "channels of the first cells"),
        _integer("layers", 20, "number of cells"),
        _AUXILIARY,
        *_SHARED,
    )
    return Description(
        name, summary, "lowtide", num_parameters, options, "_cells:cell_network"
    )


_RESNET_WIDTH = _integer(
    "width", 64, "channels of a bottleneck in the first stage (128: Wide ResNet)"
)
_CLASSIFIER_DROPOUT = _fraction("dropout", 0.5, "chance of dropping a value")
_DENSE_DROPOUT = _fraction("dropout", 0.0, "chance of dropping a value")
_VGG = (_CLASSIFIER_DROPOUT, _flag("batch_norm", False, "normalise each convolution"))

_ENTRIES = (
    Description(
        "mlp",
        "plain multilayer perceptron",
        "lowtide",
        3_300,
        (
            _batch(32),
            _integer("features", None, "size of a sample; default: width"),
            _integer("width", 32, "size of the hidden layers (also: hidden)"),
            _integer("layers", 3, "number of hidden layers"),
            _integer("classes", 4, "number of classes"),
            *_SHARED,
        ),
        "_small:mlp",
    ),
    Description(
        "tiny_gpt",
        "GPT of a few blocks in plain torch",
        "lowtide",
        120_576,
        (
            *_text_options(4, 64, 256, 2, 64, 4),
            _fraction("dropout", 0.0, "chance of dropping a value"),
            *_SHARED,
        ),
        "_small:tiny_gpt",
    ),
    _torchvision("alexnet", "AlexNet", 61_100_840, _CLASSIFIER_DROPOUT, least_image=63),
    _torchvision("vgg11", "VGG of 11 layers", 132_863_336, *_VGG, least_image=32),
    _torchvision("vgg13", "VGG of 13 layers", 133_047_848, *_VGG, least_image=32),
    _torchvision("vgg16", "VGG of 16 layers", 138_357_544, *_VGG, least_image=32),
    _torchvision("vgg19", "VGG of 19 layers", 143_667_240, *_VGG, least_image=32),
    _torchvision("resnet18", "residual network of 18 layers", 11_689_512),
    _torchvision("resnet34", "residual network of 34 layers", 21_797_672),
    _torchvision(
        "resnet50", "residual network of 50 layers", 25_557_032, _RESNET_WIDTH
    ),
    _torchvision(
        "resnet101", "residual network of 101 layers", 44_549_160, _RESNET_WIDTH
    ),
    _torchvision(
        "resnet152", "residual network of 152 layers", 60_192_808, _RESNET_WIDTH
    ),
    _torchvision(
        "densenet121",
        "dense network of 121 layers",
        7_978_856,
        _DENSE_DROPOUT,
        least_image=32,
    ),
    _torchvision(
        "densenet161",
        "dense network of 161 layers",
        28_681_000,
        _DENSE_DROPOUT,
        least_image=32,
    ),
    _torchvision(
        "densenet169",
        "dense network of 169 layers",
        14_149_480,
        _DENSE_DROPOUT,
        least_image=32,
    ),
    _torchvision(
        "densenet201",
        "dense network of 201 layers",
        20_013_928,
        _DENSE_DROPOUT,
        least_image=32,
    ),
    _torchvision(
        "inception_v3",
        "Inception v3; by default without its auxiliary classifier",
        23_834_568,
        _CLASSIFIER_DROPOUT,
        _AUXILIARY,
        image=299,
        least_image=75,
    ),
    _cells("nasnet_cifar", "NASNet-A cells, for CIFAR-10", 3_830_950),
    _cells("amoebanet_cifar", "AmoebaNet-A cells, for CIFAR-10", 3_145_078),
    _cells("darts_cifar", "DARTS cells (second order), for CIFAR-10", 3_349_342),
    _torchvision(
        "mobilenet_v3_large",
        "MobileNet v3, large",
        5_483_032,
        _fraction("dropout", 0.2, "chance of dropping a value"),
    ),
    _torchvision(
        "convnext_tiny",
        "ConvNeXt, tiny",
        28_589_128,
        _fraction("drop_path", 0.1, "chance of dropping the deepest branch"),
        least_image=32,
    ),
    Description(
        "unet",
        "U-Net for segmentation, padded, with batch normalisation",
        "lowtide",
        31_037_698,
        (
            _batch(2),
            _integer("image", 256, "height and width in pixels"),
            _integer("channels", 3, "channels of the image"),
            _integer("classes", 2, "number of classes of a pixel"),
            _integer("width", 64, "channels at full resolution"),
            _integer("depth", 4, "times the resolution is halved"),
            *_SHARED,
        ),
        "_unet:unet",
    ),
    _vit("vit", "vision transformer, small (ViT-S/16)", 22_050_664, 384, 6),
    _vit("vit_base", "vision transformer, base (ViT-B/16)", 86_567_656, 768, 12),
    _transformer(
        "gpt2",
        "GPT-2 language model",
        124_439_808,
        *_text_options(4, 256, 50_257, 12, 768, 12),
        _integer("intermediate", None, "feed-forward width; default: 4 x width"),
        _integer("positions", 1024, "learned positions; raised to sequence if shorter"),
        _DROPOUT,
    ),
    _transformer(
        "bert",
        "BERT masked language model",
        109_514_298,
        *_text_options(8, 128, 30_522, 12, 768, 12),
        _integer("intermediate", None, "feed-forward width; default: 4 x width"),
        _integer("positions", 512, "learned positions; raised to sequence if shorter"),
        _DROPOUT,
    ),
    _transformer(
        "t5",
        "T5 encoder and decoder",
        60_506_624,
        *_text_options(8, 128, 32_128, 6, 512, 8),
        _integer("target", None, "tokens of the answer; default: sequence"),
        _integer("intermediate", None, "feed-forward width; default: 4 x width"),
        _DROPOUT,
    ),
    _transformer(
        "llama",
        "Llama language model; size picks the defaults of a published one",
        56_369_664,
        _choice(
            "size",
            "small",
            "sizes that are not given come from it",
            ("small", "1b", "8b", "70b", "405b"),
        ),
        _batch(2),
        _integer("sequence", 512, "tokens in a sample"),
        _integer("vocab", None, "number of different tokens"),
        _integer("layers", None, "number of blocks"),
        _integer("width", None, "size of the residual stream (also: hidden)"),
        _integer("heads", None, "attention heads"),
        _integer("kv_heads", None, "heads of keys and values"),
        _integer("intermediate", None, "feed-forward width"),
        _fraction("dropout", 0.0, "chance of dropping an attention weight"),
    ),
)
_CATALOG: Mapping[str, Description] = {entry.name: entry for entry in _ENTRIES}
