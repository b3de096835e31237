"""Which models there are and which options each one takes. Imports no torch."""

from collections.abc import Mapping
from difflib import get_close_matches

from lowtide.errors import InvalidArgumentError
from lowtide.models._options import DTYPES, Description, Option

ALIASES: Mapping[str, str] = {"vit_small": "vit", "mobilenet": "mobilenet_v3_large"}


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


def _integer(name: str, default: int | None, help: str, least: int = 1) -> Option:
    return Option(name, default, help, int, least=least)


def _choice(name: str, help: str, *choices: str) -> Option:
    """One of some words; the first is the default."""
    return Option(name, choices[0], help, str, choices)


def _batch(samples: int) -> Option:
    return _integer("batch", samples, "samples in a batch")


def _image(pixels: int, least: int = 1) -> Option:
    return _integer("image", pixels, "height and width in pixels", least)


def _dropout(chance: float, what: str = "a value") -> Option:
    return Option("dropout", chance, f"chance of dropping {what}", float)


_SHARED = (
    _choice("dtype", "type of weights and of real-valued inputs", *DTYPES),
    Option("device", None, "where to build; default: torch's default device", str),
    _integer("seed", 0, "of the weights and of the data", least=0),
)
_CLASSES = _integer("classes", 1000, "number of classes")
_LOSS = _choice(
    "loss",
    "sum adds up the outputs, as published memory tables do",
    "cross_entropy",
    "sum",
)
_ATTENTION = _choice("attention", "attention kernel", "sdpa", "eager")
_FEED_FORWARD = _integer("intermediate", None, "feed-forward width; default: 4 x width")


def _blocks(
    layers: int | None, width: int | None, heads: int | None
) -> tuple[Option, ...]:
    return (
        _integer("layers", layers, "number of blocks"),
        _integer("width", width, "size of the residual stream (also: hidden)"),
        _integer("heads", heads, "attention heads"),
    )


def _text(batch: int, sequence: int, vocab: int | None) -> tuple[Option, ...]:
    return (
        _batch(batch),
        _integer("sequence", sequence, "tokens in a sample"),
        _integer("vocab", vocab, "number of different tokens"),
    )


def _positions(count: int) -> Option:
    help = "learned positions; raised to sequence if shorter"
    return _integer("positions", count, help)


def _model(
    library: str, name: str, summary: str, num_parameters: int, maker: str, *own: Option
) -> Description:
    return Description(name, summary, library, num_parameters, (*own, *_SHARED), maker)


def _torchvision(
    name: str,
    summary: str,
    num_parameters: int,
    *own: Option,
    image: int = 224,
    least_image: int = 1,
) -> Description:
    options = (_batch(8), _image(image, least_image), _CLASSES, _LOSS, *own)
    maker = "_vision:torchvision_model"
    return _model("torchvision", name, summary, num_parameters, maker, *options)


def _transformer(
    name: str, summary: str, num_parameters: int, *own: Option, maker: str = ""
) -> Description:
    maker = f"_transformers:{maker or name}"
    options = (*own, _ATTENTION)
    return _model("transformers", name, summary, num_parameters, maker, *options)


def _vit(
    name: str, summary: str, num_parameters: int, width: int, heads: int
) -> Description:
    patch = _integer("patch", 16, "height and width of a patch in pixels")
    blocks = (*_blocks(12, width, heads), _FEED_FORWARD, _dropout(0.0))
    options = (_batch(8), _image(224), _CLASSES, patch, *blocks)
    return _transformer(name, summary, num_parameters, *options, maker="vit")


_VGG = {11: 132_863_336, 13: 133_047_848, 16: 138_357_544, 19: 143_667_240}
_RESNET = {18: 11_689_512, 34: 21_797_672}
_BOTTLENECK_RESNET = {50: 25_557_032, 101: 44_549_160, 152: 60_192_808}
_DENSENET = {121: 7_978_856, 161: 28_681_000, 169: 14_149_480, 201: 20_013_928}
_BATCH_NORM = Option("batch_norm", False, "normalise each convolution", bool)
_BOTTLENECK = _integer(
    "width", 64, "channels of a bottleneck in the first stage (128: Wide ResNet)"
)

_ENTRIES = (
    _model(
        *("lowtide", "mlp", "plain multilayer perceptron", 3_300),
        "_own:mlp",
        _batch(32),
        _integer("features", None, "size of a sample; default: width"),
        _integer("width", 32, "size of the hidden layers (also: hidden)"),
        _integer("layers", 3, "number of hidden layers"),
        _integer("classes", 4, "number of classes"),
    ),
    _model(
        *("lowtide", "tiny_gpt", "GPT of a few blocks in plain torch", 120_576),
        "_own:tiny_gpt",
        *_text(4, 64, 256),
        *_blocks(2, 64, 4),
        _dropout(0.0),
    ),
    _torchvision("alexnet", "AlexNet", 61_100_840, _dropout(0.5), least_image=63),
    *(
        _torchvision(
            *(f"vgg{depth}", f"VGG of {depth} layers", count),
            *(_dropout(0.5), _BATCH_NORM),
            least_image=32,
        )
        for depth, count in _VGG.items()
    ),
    *(
        _torchvision(
            f"resnet{depth}", f"residual network of {depth} layers", count, *own
        )
        for counts, own in ((_RESNET, ()), (_BOTTLENECK_RESNET, (_BOTTLENECK,)))
        for depth, count in counts.items()
    ),
    *(
        _torchvision(
            *(f"densenet{depth}", f"dense network of {depth} layers", count),
            _dropout(0.0),
            least_image=32,
        )
        for depth, count in _DENSENET.items()
    ),
    _torchvision(
        "inception_v3",
        "Inception v3; by default without its auxiliary classifier",
        23_834_568,
        _dropout(0.5),
        Option("auxiliary", False, "train with the auxiliary classifier as well", bool),
        image=299,
        least_image=75,
    ),
    _torchvision("mobilenet_v3_large", "MobileNet v3, large", 5_483_032, _dropout(0.2)),
    _torchvision(
        *("convnext_tiny", "ConvNeXt, tiny", 28_589_128),
        Option("drop_path", 0.1, "chance of dropping the deepest branch", float),
        least_image=32,
    ),
    _model(
        "lowtide",
        "unet",
        "U-Net for segmentation, padded, with batch normalisation",
        31_037_698,
        "_own:unet",
        *(_batch(2), _image(256)),
        _integer("channels", 3, "channels of the image"),
        _integer("classes", 2, "number of classes of a pixel"),
        _integer("width", 64, "channels at full resolution"),
        _integer("depth", 4, "times the resolution is halved"),
    ),
    _vit("vit", "vision transformer, small (ViT-S/16)", 22_050_664, 384, 6),
    _vit("vit_base", "vision transformer, base (ViT-B/16)", 86_567_656, 768, 12),
    _transformer(
        *("gpt2", "GPT-2 language model", 124_439_808),
        *_text(4, 256, 50_257),
        *_blocks(12, 768, 12),
        *(_FEED_FORWARD, _positions(1024), _dropout(0.1)),
    ),
    _transformer(
        *("bert", "BERT masked language model", 109_514_298),
        *_text(8, 128, 30_522),
        *_blocks(12, 768, 12),
        *(_FEED_FORWARD, _positions(512), _dropout(0.1)),
    ),
    _transformer(
        *("t5", "T5 encoder and decoder", 60_506_624),
        *_text(8, 128, 32_128),
        *_blocks(6, 512, 8),
        _integer("target", None, "tokens of the answer; default: sequence"),
        *(_FEED_FORWARD, _dropout(0.1)),
    ),
    _transformer(
        "llama",
        "Llama language model; size picks the defaults of a published one",
        56_369_664,
        _choice(
            "size",
            "sizes that are not given come from it",
            *("small", "1b", "8b", "70b", "405b"),
        ),
        *_text(2, 512, None),
        *_blocks(None, None, None),
        _integer("kv_heads", None, "heads of keys and values"),
        _integer("intermediate", None, "feed-forward width"),
        _dropout(0.0, "an attention weight"),
    ),
)
_CATALOG: Mapping[str, Description] = {entry.name: entry for entry in _ENTRIES}
