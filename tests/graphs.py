"""Training steps for tests, built without torch.

Each function returns a whole step: forward, turn, backward, parameter gradients as
outputs. Bytes and seconds follow from shapes, roughly as on a small CPU, and each op
saves for its backward what the real one saves: a linear layer its input, a ReLU its
output, a batch norm its input and statistics, an addition nothing. `GRAPHS` is the list
that suites run over: small enough for an exact solver, one of each kind of trouble.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from lowtide.step.graph import Kind, Op, Region, StepGraph, Storage, check_graph

BYTES_PER_SECOND = 1e10
FLOPS_PER_SECOND = 1e11
RANDOM = "draws random numbers"
MUTATES = "mutates state"

Shape = tuple[int, int]  # rows (tokens, pixels) and columns (channels), 4 bytes each


class Tape:
    """Records forward ops and how to go back through them, then writes a step."""

    def __init__(self, name: str, *, alignment_bytes: int = 64) -> None:
        self.name = name
        self.alignment_bytes = alignment_bytes
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.outputs: list[int] = []
        self.regions = [Region(0, "forward")]
        self._grads: dict[int, int] = {}
        self._back: list[tuple[int, Callable[[int], None]]] = []
        self._pieces_back: list[tuple[int, tuple[int, ...]]] = []

    # Storages

    def storage(
        self, name: str, shape: Shape, kind: Kind, *, resident: bool = False
    ) -> int:
        """A new storage of this shape."""
        number = len(self.storages)
        nbytes = 4 * shape[0] * shape[1]
        self.storages.append(Storage(number, name, nbytes, kind, resident, shape))
        return number

    def parameter(self, shape: Shape) -> int:
        """A parameter: resident, and its gradient is an output of the step."""
        return self.storage(f"w{len(self.storages)}", shape, "parameter", resident=True)

    def input(self, rows: int, columns: int) -> int:
        """An input of the step: resident, without gradient."""
        return self.storage(
            f"x{len(self.storages)}", (rows, columns), "input", resident=True
        )

    def shape(self, storage: int) -> Shape:
        """Rows and columns of a storage."""
        rows, columns = self.storages[storage].shape
        return rows, columns

    # Ops

    def run(
        self,
        target: str,
        reads: Sequence[int],
        shapes: Sequence[Shape] = (),
        *,
        into: Sequence[int] = (),
        flops: float = 0.0,
        scratch_bytes: int = 0,
        once: str = "",
        standby: bool = False,
    ) -> tuple[int, ...]:
        """Append an op that makes new storages of these shapes, or remakes `into`."""
        backward = self.regions[-1].phase == "backward"
        kind: Kind = "gradient" if backward else "activation"
        number = len(self.ops)
        made = tuple(
            self.storage(f"{target}{number}.{i}", s, kind) for i, s in enumerate(shapes)
        )
        writes = (*into, *made)
        moved = sum(self.storages[s].nbytes for s in (*reads, *writes))
        self.ops.append(
            Op(
                id=number,
                name=f"{target}{number}",
                target=target,
                reads=tuple(dict.fromkeys(reads)),
                writes=writes,
                seconds=moved / BYTES_PER_SECOND + flops / FLOPS_PER_SECOND,
                scratch_bytes=scratch_bytes,
                phase="backward" if backward else "forward",
                piece=self.regions[-1].piece,
                once=once,
                standby=standby,
                signature=f"{target}{[self.shape(s) for s in (*reads, *writes)]}",
            )
        )
        return writes

    def back(self, made: int, pull: Callable[[int], None]) -> None:
        """Say what the backward does with the gradient of a storage."""
        self._back.append((made, pull))

    def give(self, storage: int, gradient: int) -> None:
        """Hand a gradient to a storage; a second one is added to the first."""
        held = self._grads.get(storage)
        if held is not None:
            (gradient,) = self.run("add", [held, gradient], [self.shape(storage)])
        self._grads[storage] = gradient

    def wants(self, storage: int) -> bool:
        """Whether the storage needs a gradient."""
        return self.storages[storage].kind != "input"

    # Layers

    def linear(self, x: int, columns: int, *, weight: int | None = None) -> int:
        """`x @ weight`; the backward makes both gradients in two ops."""
        rows, inner = self.shape(x)
        w = self.parameter((inner, columns)) if weight is None else weight
        flops = 2.0 * rows * inner * columns
        (y,) = self.run("linear", [x, w], [(rows, columns)], flops=flops)

        def pull(d: int) -> None:
            self.give(w, *self.run("dw", [x, d], [self.shape(w)], flops=flops))
            if self.wants(x):
                self.give(x, *self.run("dx", [d, w], [self.shape(x)], flops=flops))

        self.back(y, pull)
        return y

    def matmul(self, a: int, b: int, shape: Shape, flops: float) -> int:
        """A product of two activations: the backward needs both."""
        (y,) = self.run("matmul", [a, b], [shape], flops=flops)

        def pull(d: int) -> None:
            self.give(a, *self.run("da", [d, b], [self.shape(a)], flops=flops))
            self.give(b, *self.run("db", [a, d], [self.shape(b)], flops=flops))

        self.back(y, pull)
        return y

    def conv(self, x: int, channels: int, *, shrink: int = 1, grow: int = 1) -> int:
        """A 3x3 convolution with scratch; one backward op makes both gradients."""
        pixels, inner = self.shape(x)
        w = self.parameter((9 * inner, channels))
        out = (pixels * grow // shrink, channels)
        flops = 2.0 * out[0] * 9 * inner * channels
        scratch = 4 * out[0] * inner
        (y,) = self.run("conv", [x, w], [out], flops=flops, scratch_bytes=scratch)

        def pull(d: int) -> None:
            shapes = [self.shape(w), *([self.shape(x)] if self.wants(x) else [])]
            made = self.run(
                "conv_back", [d, x, w], shapes, flops=2 * flops, scratch_bytes=scratch
            )
            for source, gradient in zip((w, x), made, strict=False):
                self.give(source, gradient)

        self.back(y, pull)
        return y

    def batch_norm(self, x: int) -> int:
        """Updates running statistics, so it runs once; a standby op does the rest."""
        columns = self.shape(x)[1]
        w = self.parameter((1, columns))
        stats = (1, columns)
        y, mean, scale, *_ = self.run(
            "norm", [x, w], [self.shape(x), stats, stats, stats], once=MUTATES
        )
        self.run("norm_again", [x, w], into=[y, mean, scale], standby=True)

        def pull(d: int) -> None:
            dx, dw = self.run(
                "norm_back", [d, x, mean, scale, w], [self.shape(x), stats]
            )
            self.give(x, dx)
            self.give(w, dw)

        self.back(y, pull)
        return y

    def layer_norm(self, x: int) -> int:
        """Saves its input and two columns of statistics."""
        rows, columns = self.shape(x)
        w = self.parameter((1, columns))
        y, mean, scale = self.run(
            "layer_norm", [x, w], [(rows, columns), (rows, 1), (rows, 1)]
        )

        def pull(d: int) -> None:
            dx, dw = self.run(
                "layer_norm_back",
                [d, x, mean, scale, w],
                [(rows, columns), (1, columns)],
            )
            self.give(x, dx)
            self.give(w, dw)

        self.back(y, pull)
        return y

    def pointwise(self, target: str, x: int, *, saves: str) -> int:
        """One in, one out; `saves` is "input", "output" or "" for nothing."""
        (y,) = self.run(target, [x], [self.shape(x)])
        saved = {"input": [x], "output": [y], "": []}[saves]

        def pull(d: int) -> None:
            self.give(x, *self.run(f"{target}_back", [d, *saved], [self.shape(x)]))

        self.back(y, pull)
        return y

    def relu(self, x: int) -> int:
        """Saves its output."""
        return self.pointwise("relu", x, saves="output")

    def dropout(self, x: int, *, replay: bool = True) -> int:
        """Draws a mask once; with `replay` a standby op can make both again."""
        rows, columns = self.shape(x)
        mask_shape = (rows, -(-columns // 4))
        y, mask = self.run("dropout", [x], [(rows, columns), mask_shape], once=RANDOM)
        if replay:
            self.run("dropout_again", [x], into=[y, mask], standby=True)

        def pull(d: int) -> None:
            self.give(x, *self.run("dropout_back", [d, mask], [self.shape(x)]))

        self.back(y, pull)
        return y

    def max_pool(self, x: int) -> int:
        """Saves its input and indices twice as large as its output."""
        rows, columns = self.shape(x)
        y, where = self.run(
            "max_pool", [x], [(rows // 4, columns), (rows // 4, 2 * columns)]
        )

        def pull(d: int) -> None:
            self.give(x, *self.run("max_pool_back", [d, x, where], [(rows, columns)]))

        self.back(y, pull)
        return y

    def add(self, a: int, b: int) -> int:
        """Saves nothing, and hands its gradient on without an op."""
        (y,) = self.run("sum", [a, b], [self.shape(a)])

        def pull(d: int) -> None:
            self.give(a, d)
            self.give(b, d)

        self.back(y, pull)
        return y

    def concatenate(self, parts: Sequence[int]) -> int:
        """Saves nothing; the backward cuts the gradient into copies."""
        parts = tuple(parts)
        rows = self.shape(parts[0])[0]
        columns = sum(self.shape(p)[1] for p in parts)
        (y,) = self.run("cat", parts, [(rows, columns)])

        def pull(d: int) -> None:
            for part in parts:
                if self.wants(part):
                    self.give(part, *self.run("slice", [d], [self.shape(part)]))

        self.back(y, pull)
        return y

    def cross_entropy(self, logits: int) -> int:
        """A scalar loss that saves log-probabilities as large as the logits."""
        (y,) = self.run("log_softmax", [logits], [self.shape(logits)])
        (loss,) = self.run("loss", [y], [(1, 1)])

        def pull(d: int) -> None:
            self.give(logits, *self.run("loss_back", [d, y], [self.shape(logits)]))

        self.back(loss, pull)
        return loss

    # The ends

    def break_graph(self, carried: Sequence[int]) -> list[int]:
        """End the captured piece; what is carried over comes back as new storages."""
        piece = self.regions[-1].piece + 1
        made = [
            self.storage(f"carried{s}", self.shape(s), "activation") for s in carried
        ]
        self._open("forward", piece, carried, made)
        self._pieces_back.append((len(self._back), tuple(carried)))
        for old, new in zip(carried, made, strict=True):
            self._back.append((new, lambda d, old=old: self.give(old, d)))
        return made

    def _open(
        self, phase: str, piece: int, reads: Sequence[int], writes: Sequence[int]
    ) -> None:
        self.regions.append(Region(piece, phase))  # type: ignore[arg-type]
        self.ops.append(
            Op(
                id=len(self.ops),
                name="turn" if phase == "backward" else "break",
                target="lowtide::turn",
                reads=tuple(reads),
                writes=tuple(writes),
                phase=phase,  # type: ignore[arg-type]
                piece=-1,
                once="runs outside",
                opens=len(self.regions) - 1,
                signature="outside",
            )
        )

    def finish(self, loss: int) -> StepGraph:
        """Write the turn and the backward."""
        start = self.storage("d_loss", self.shape(loss), "gradient")
        piece = self.regions[-1].piece
        self._open("backward", piece, [loss], [start])
        self._grads[loss] = start
        breaks = dict(self._pieces_back)
        for number in range(len(self._back) - 1, -1, -1):
            made, pull = self._back[number]
            gradient = self._grads.get(made)
            if gradient is not None:
                pull(gradient)
            if number in breaks:
                # The gradients of what was carried over leave one piece and enter the
                # one before it.
                piece -= 1
                leaving = [self._grads[s] for s in breaks[number] if s in self._grads]
                self._open("backward", piece, leaving, [])
        keep = [
            self._grads[s.id]
            for s in self.storages
            if s.kind == "parameter" and s.id in self._grads
        ]
        outputs = tuple(dict.fromkeys([loss, *self.outputs, *keep]))
        step = StepGraph(
            ops=_needed(self.ops, outputs),
            storages=tuple(self.storages),
            outputs=outputs,
            regions=tuple(self.regions),
            alignment_bytes=self.alignment_bytes,
            name=self.name,
        )
        check_graph(step)
        return step


def _needed(ops: Sequence[Op], outputs: Sequence[int]) -> tuple[Op, ...]:
    """The ops that an output or an effect needs, as captured steps hold no others."""
    wanted = set(outputs)
    found: list[Op] = []
    for op in reversed(ops):
        if op.once or not wanted.isdisjoint(op.writes):
            wanted.update(op.reads)
            found.append(op)
    return tuple(replace(op, id=i) for i, op in enumerate(reversed(found)))


def chain(
    n: int, *, rows: int = 512, widths: Sequence[int] = (64,), name: str = ""
) -> StepGraph:
    """A multi-layer perceptron: n linear layers, each with a ReLU.

    `widths` repeats over the layers, so equal and unequal chains come from it.
    """
    tape = Tape(name or f"chain{n}")
    x = tape.input(rows, widths[0])
    for layer in range(n):
        x = tape.relu(tape.linear(x, widths[layer % len(widths)]))
    return tape.finish(tape.cross_entropy(tape.linear(x, 16)))


def residual(n: int, *, pixels: int = 4096, channels: int = 8) -> StepGraph:
    """A residual network: n blocks of two convolutions with batch norm."""
    tape = Tape(f"residual{n}")
    x = tape.relu(tape.batch_norm(tape.conv(tape.input(pixels, 3), channels)))
    for block in range(n):
        if block in (3, 6, 12):
            x = tape.relu(tape.conv(x, 2 * tape.shape(x)[1], shrink=4))
        y = tape.relu(tape.batch_norm(tape.conv(x, tape.shape(x)[1])))
        y = tape.batch_norm(tape.conv(y, tape.shape(x)[1]))
        x = tape.relu(tape.add(x, y))
    return tape.finish(tape.cross_entropy(tape.linear(x, 10)))


def dense(n: int, *, pixels: int = 512, growth: int = 8) -> StepGraph:
    """A dense block: every layer reads the concatenation of all before it."""
    tape = Tape(f"dense{n}")
    parts = [tape.conv(tape.input(pixels, 3), 2 * growth)]
    for _ in range(n):
        y = tape.concatenate(parts) if len(parts) > 1 else parts[0]
        parts.append(tape.conv(tape.relu(tape.batch_norm(y)), growth))
    x = tape.max_pool(tape.concatenate(parts))
    return tape.finish(tape.cross_entropy(tape.linear(x, 10)))


def unet(depth: int, *, pixels: int = 8192, channels: int = 4) -> StepGraph:
    """A U-Net: what goes down at each level is read again on the way up."""
    tape = Tape(f"unet{depth}")
    x = tape.relu(tape.conv(tape.input(pixels, 3), channels))
    skips: list[int] = []
    for _ in range(depth):
        x = tape.relu(tape.conv(x, tape.shape(x)[1]))
        skips.append(x)
        x = tape.relu(tape.conv(tape.max_pool(x), 2 * tape.shape(x)[1]))
    for skip in reversed(skips):
        x = tape.conv(x, tape.shape(skip)[1], grow=4)
        x = tape.relu(tape.conv(tape.concatenate([x, skip]), tape.shape(skip)[1]))
    return tape.finish(tape.cross_entropy(tape.conv(x, 2)))


def transformer(
    layers: int,
    *,
    tokens: int = 256,
    width: int = 64,
    vocabulary: int = 512,
    replay: bool = True,
    encoder_layers: int = 0,
) -> StepGraph:
    """A decoder with dropout, a mask shared by all layers, and tied embeddings.

    With `encoder_layers` an encoder goes first, and its output is read by the
    cross-attention of every layer. Without `replay` the dropout masks must be kept.
    """
    kind = "" if replay else "_kept"
    label = f"t5_{encoder_layers}_{layers}" if encoder_layers else f"gpt{layers}{kind}"
    tape = Tape(label)
    embedding = tape.parameter((vocabulary, width))
    ids = tape.input(tokens, 1)
    (mask,) = tape.run("mask", [ids], [(tokens, tokens // 4)])

    def embed() -> int:
        (x,) = tape.run("embed", [ids, embedding], [(tokens, width)])
        shape = tape.shape(embedding)
        tape.back(
            x,
            lambda d: tape.give(embedding, *tape.run("embed_back", [d, ids], [shape])),
        )
        return tape.dropout(x, replay=replay)

    def attend(x: int, source: int) -> int:
        y = tape.layer_norm(x)
        q = tape.linear(y, width)
        k, v = (tape.linear(y if source == x else source, width) for _ in "kv")
        flops = 2.0 * tokens * tokens * width
        scores = tape.matmul(q, k, (tokens, tokens), flops)
        (masked,) = tape.run("where", [scores, mask], [(tokens, tokens)])

        def unmask(d: int) -> None:
            tape.give(scores, *tape.run("where", [d, mask], [(tokens, tokens)]))

        tape.back(masked, unmask)
        weights = tape.dropout(
            tape.pointwise("softmax", masked, saves="output"), replay=replay
        )
        y = tape.linear(tape.matmul(weights, v, (tokens, width), flops), width)
        return tape.add(x, tape.dropout(y, replay=replay))

    def feed(x: int) -> int:
        y = tape.linear(tape.layer_norm(x), 4 * width)
        y = tape.linear(tape.pointwise("gelu", y, saves="input"), width)
        return tape.add(x, tape.dropout(y, replay=replay))

    memory = -1
    if encoder_layers:
        memory = embed()
        for _ in range(encoder_layers):
            memory = feed(attend(memory, memory))
    x = embed()
    for _ in range(layers):
        x = attend(x, x)
        if encoder_layers:
            x = attend(x, memory)
        x = feed(x)
    x = tape.layer_norm(x)
    # Tied: the head reads the embedding turned round, so its gradient adds to it.
    (head,) = tape.run("transpose", [embedding], [(width, vocabulary)])
    shape = tape.shape(embedding)
    tape.back(
        head, lambda d: tape.give(embedding, *tape.run("transpose", [d], [shape]))
    )
    return tape.finish(tape.cross_entropy(tape.linear(x, vocabulary, weight=head)))


def two_pieces(n: int = 3) -> StepGraph:
    """A step captured in two graphs: n layers, a break, n layers and the loss."""
    tape = Tape(f"two_pieces{n}")
    x = tape.input(512, 64)
    for _ in range(n):
        x = tape.relu(tape.linear(x, 64))
    (x,) = tape.break_graph([x])
    for _ in range(n):
        x = tape.relu(tape.linear(x, 64))
    return tape.finish(tape.cross_entropy(x))


def random_dag(seed: int, n: int) -> StepGraph:
    """A step of n random forward ops: any shape of graph, sizes from 0 to large.

    Holds ops with several outputs, random draws with and without a replay, ops that
    mutate, scratch, reads of far earlier storages, and gradients that add up.
    """
    rng = random.Random(seed)
    tape = Tape(f"random{seed}_{n}", alignment_bytes=rng.choice((1, 64)))
    known = [tape.input(rng.randrange(1, 64), 16), tape.parameter((8, 8))]
    for _ in range(n):
        near = known[-4:] if rng.random() < 0.8 else known
        reads = rng.sample(near, rng.randint(1, min(3, len(near))))
        if rng.random() < 0.3:
            reads.append(tape.parameter((rng.randrange(1, 16), 8)))
        rows = rng.choice((0, 1, rng.randrange(1, 64), rng.randrange(64, 256)))
        shapes = [(rows, 16)]
        shapes += [(rng.randrange(0, 16), 4)] * rng.choice((0, 0, 0, 1, 2))
        once = rng.choice(("", "", "", "", "", RANDOM, MUTATES))
        made = tape.run(
            "op",
            reads,
            shapes,
            flops=rng.choice((0.0, 1e4, 1e6)),
            scratch_bytes=rng.choice((0, 0, rng.randrange(4096))),
            once=once,
        )
        if once and rng.random() < 0.6:
            tape.run("again", reads, into=made, standby=True)
        tape.back(made[0], _random_pull(tape, rng, reads, made))
        known.extend(made[:2])
    ends = list(dict.fromkeys(known[-3:]))
    (loss,) = tape.run("loss", ends, [(1, 1)])

    def pull(d: int) -> None:
        for end in ends:
            if tape.wants(end):
                tape.give(end, *tape.run("end_back", [d, end], [tape.shape(end)]))

    tape.back(loss, pull)
    return tape.finish(loss)


def _random_pull(
    tape: Tape, rng: random.Random, reads: Sequence[int], made: Sequence[int]
) -> Callable[[int], None]:
    """Go back through a random op, in one op or one for each input."""
    saved = [s for s in (*reads, *made) if rng.random() < 0.5]
    joint = rng.random() < 0.5

    def pull(d: int) -> None:
        wanted = [s for s in dict.fromkeys(reads) if tape.wants(s)]
        groups = [wanted] if joint else [[s] for s in wanted]
        for group in filter(None, groups):
            shapes = [tape.shape(s) for s in group]
            grads = tape.run("back", [d, *saved], shapes, flops=1e4)
            for source, gradient in zip(group, grads, strict=True):
                tape.give(source, gradient)

    return pull


GRAPHS: tuple[StepGraph, ...] = (
    chain(1),
    chain(8),
    chain(12, widths=(64, 16, 128, 32), name="uneven12"),
    residual(4),
    dense(5),
    unet(2),
    transformer(2),
    transformer(1, replay=False),
    transformer(1, encoder_layers=1),
    two_pieces(3),
    random_dag(1, 8),
    random_dag(2, 16),
    random_dag(3, 24),
)
