"""The head of a language model and its loss, some rows or some words at a time.

The largest tensors of such a step have a number for every token and every word: the
logits, their log-softmax, its gradient. No op behind the matrix product needs all of
them at once. The loss needs whole rows, so does the gradient of what the head reads;
the gradient of its matrix needs whole columns. So both can be computed in parts, each
with the kernels of the whole, and no tensor of that size is ever there:

* forward: some rows of logits, their log-softmax, the one number of each that counts;
* backward: the rows again, their gradient, and from that the gradient of what was read;
  then some columns of logits again, their gradient, and those rows of the matrix's.

A column of a log-softmax is `(x - m) - s`, with the maximum of its row and the
logarithm of its sum, which the rows have left. Its gradient takes the sum of a row of
gradients, all of which are zero but one. An extra column holds that one for the words
that are not among those at hand.

A kernel for another number of rows may add in another order. So a number of rows and
of words is looked for with which all bits are the same, here and for these sizes
(`exact_parts`), and where there is none the head stays whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lowtide.engine.bits import same_bits
from lowtide.engine.costs.cache import cache_directory
from lowtide.engine.loss import gradient_over, rows_at_once
from lowtide.errors import LowtideError
from lowtide.step.files import write_whole

aten = torch.ops.aten
log = logging.getLogger("lowtide.profile")

# How many rows, and how many words, are tried: the fewest that give the same bits.
ROWS = (128, 256, 512, 1024)
WORDS = (1024, 2048, 4096, 8192)
_IGNORED = -100
# What was kept under another number is tried anew.
_TRIED_AS = 1
# Found in this process.
_known: dict[str, Parts | None] = {}


class Parts(NamedTuple):
    """How many rows and how many words are computed at once."""

    rows: int
    words: int


class Loss(NamedTuple):
    """What cross entropy is told, and in which type it is computed."""

    reduction: int
    ignore_index: int
    dtype: torch.dtype


class Layout(NamedTuple):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Head(NamedTuple):
    """What a head and its loss depend on, but for the numbers.

    `hidden` is [rows, width], `matrix` [width, words]. The gradient of the matrix is
    [words, width], or [width, words] if it `is_transposed`.
    """

    hidden: Layout
    matrix: Layout
    bias: Layout | None
    loss: Loss
    is_transposed: bool = False

    def share(self, parts: Parts) -> float:
        """How much of the whole is computed at once."""
        rows, words = self.hidden.shape[0], self.matrix.shape[1]
        return max(parts.rows / rows, parts.words / words)

    def loss_scratch_bytes(self, parts: Parts) -> int:
        """What the loss needs beside arguments and results."""
        rows, words = self.hidden.shape[0], self.matrix.shape[1]
        return self._part_bytes(parts.rows, words) + self._row_bytes * rows

    def gradient_scratch_bytes(self, parts: Parts) -> int:
        """What the gradients need beside arguments and results.

        That of the matrix is not there yet while the rows are computed.
        """
        rows, (width, words) = self.hidden.shape[0], self.matrix.shape
        by_rows = self._part_bytes(parts.rows, words) - (
            width * words * self.hidden.dtype.itemsize
        )
        by_words = self._part_bytes(rows, parts.words + 1)
        by_words += parts.words * width * self.hidden.dtype.itemsize
        return max(by_rows, by_words) + self._row_bytes * rows

    @property
    def _row_bytes(self) -> int:
        """What is held for each row: its maximum, its sum, its target, and the like."""
        return 6 * self.loss.dtype.itemsize + 4 * 8

    def _part_bytes(self, rows: int, words: int) -> int:
        """So many logits, what they make of what the head reads, and a few at once."""
        own = self.hidden.dtype.itemsize
        few = rows_at_once(rows, words, own) * words
        made = (rows * words + min(rows, ROWS[-1]) * self.hidden.shape[1]) * own
        return made + few * (3 * self.loss.dtype.itemsize + 4)


def head_loss(
    hidden: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    loss: Loss,
    parts: Parts,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the number of rows that count, as `nll_loss_forward` has them."""
    ignored = target == loss.ignore_index
    places = target.masked_fill(ignored, 0)[:, None]
    picked = hidden.new_empty(len(hidden), 1, dtype=loss.dtype)
    for some in _slices(len(hidden), parts.rows):
        for here, block in _blocks(_logits(hidden[some], matrix, bias), loss, some):
            aten._log_softmax.out(block, 1, False, out=block)
            picked[here] = block.gather(1, places[here])
            del block
    first = torch.zeros_like(target).masked_fill_(ignored, _IGNORED)
    return aten.nll_loss_forward(picked, first, None, loss.reduction, _IGNORED)


def head_gradients(
    gradient: torch.Tensor,
    hidden: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    total_weight: torch.Tensor,
    loss: Loss,
    is_transposed: bool,
    parts: Parts,
) -> tuple[torch.Tensor, ...]:
    """The gradients of what the head reads, of its matrix, and of its bias."""
    given = _Given(gradient, hidden, matrix, bias, target, total_weight, loss)
    of_hidden = torch.empty_like(hidden)
    for some, made in given.by_rows(parts.rows):
        of_hidden[some] = made
        del made
    width, words = matrix.shape
    of_matrix = hidden.new_empty((width, words) if is_transposed else (words, width))
    of_bias = hidden.new_empty(1, words)
    for some, made, summed in given.by_words(parts.words, is_transposed):
        of_matrix[(slice(None), some) if is_transposed else some] = made
        if summed is not None:
            of_bias[:, some] = summed
        del made
    return (of_hidden, of_matrix) + (() if bias is None else (of_bias,))


class _Given:
    """The backward of a head: its arguments, and what its rows leave for its words."""

    def __init__(
        self,
        gradient: torch.Tensor,
        hidden: torch.Tensor,
        matrix: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        total_weight: torch.Tensor,
        loss: Loss,
    ) -> None:
        self.gradient, self.hidden, self.matrix = gradient, hidden, matrix
        self.bias, self.target, self.total_weight = bias, target, total_weight
        self.loss = loss
        self.highest = hidden.new_empty(len(hidden), 1, dtype=self.loss.dtype)
        self.log_sum = torch.empty_like(self.highest)

    def by_rows(self, count: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """The gradient of what the head reads, some rows at a time."""
        loss = self.loss
        for some in _slices(len(self.hidden), count):
            logits = _logits(self.hidden[some], self.matrix, self.bias)
            for here, block in _blocks(logits, loss, some):
                self.highest[here] = block.amax(1, keepdim=True)
                aten._log_softmax.out(block, 1, False, out=block)
                self.log_sum[here] = block.amax(1, keepdim=True).neg_()
                sent = self.gradient[here] if loss.reduction == 0 else self.gradient
                given = (None, loss.reduction, loss.ignore_index, self.total_weight)
                dense = aten.nll_loss_backward(sent, block, self.target[here], *given)
                aten._log_softmax_backward_data.out(
                    dense, block, 1, loss.dtype, out=block
                )
                if block.dtype != logits.dtype:
                    logits[here.start - some.start : here.stop - some.start] = block
                del block, dense
            yield some, torch.mm(logits, self.matrix.t())
            del logits

    def by_words(
        self, count: int, is_transposed: bool
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None]]:
        """The gradients of matrix and bias, for some words at a time."""
        ignored = self.target == self.loss.ignore_index
        first = torch.zeros_like(self.target).masked_fill_(ignored, _IGNORED)
        given = (first, None, self.loss.reduction, _IGNORED, self.total_weight)
        # Of each row, the one number of its gradient that is not zero.
        sent = aten.nll_loss_backward(self.gradient, self.log_sum, *given)
        for some in _slices(self.matrix.shape[1], count):
            bias = None if self.bias is None else self.bias[some]
            logits = _logits(self.hidden, self.matrix[:, some], bias)
            self._differentiate(logits, some, sent)
            if is_transposed:
                made = torch.mm(self.hidden.t(), logits)
            else:
                made = torch.mm(logits.t(), self.hidden)
            yield some, made, None if bias is None else logits.sum([0], True)
            del logits, made

    def _differentiate(
        self, logits: torch.Tensor, some: slice, sent: torch.Tensor
    ) -> None:
        """Write the gradient of some columns of logits over them."""
        count, dtype = logits.shape[1], self.loss.dtype
        is_here = (self.target >= some.start) & (self.target < some.stop)
        places = torch.where(is_here, self.target - some.start, count)[:, None]
        for few in _slices(len(logits), rows_at_once(*_sizes(logits))):
            logs = logits[few].float().sub(self.highest[few]).sub_(self.log_sum[few])
            block = logits.new_empty(len(logs), count + 1, dtype=dtype)
            block[:, :count] = logs
            block[:, count] = 0
            del logs
            dense = torch.zeros_like(block).scatter_(1, places[few], sent[few])
            aten._log_softmax_backward_data.out(dense, block, 1, dtype, out=block)
            logits[few] = block[:, :count]
            del block, dense


def _slices(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))


def _sizes(logits: torch.Tensor) -> tuple[int, int, int]:
    return (*logits.shape, logits.element_size())  # type: ignore[return-value]


def _blocks(
    logits: torch.Tensor, loss: Loss, some: slice
) -> Iterator[tuple[slice, torch.Tensor]]:
    """A few of these rows at a time, and their places among all.

    They are the rows themselves, or copies in the type in which the loss is computed.
    """
    for few in _slices(len(logits), rows_at_once(*_sizes(logits))):
        here = slice(some.start + few.start, some.start + few.stop)
        yield here, logits[few].to(loss.dtype)


def _logits(
    hidden: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    if bias is None:
        return torch.mm(hidden, matrix)
    return torch.addmm(bias, hidden, matrix)


# Which parts give the same bits.


def default_parts(head: Head) -> Parts | None:
    """What is taken where nothing can be tried, or None for a head that is small."""
    rows, words = head.hidden.shape[0], head.matrix.shape[1]
    if rows <= ROWS[0] or words <= WORDS[0]:
        return None
    # What MKL's products most often ask for, if it is less than the whole.
    return Parts(
        *(
            max(n for n in few[:2] if n < count)
            for few, count in ((ROWS, rows), (WORDS, words))
        )
    )


def exact_parts(head: Head) -> Parts | None:
    """The parts in which a head gives the bits of the whole, here; None if none does.

    It is tried once, on numbers of our own, and remembered in this process and on disk.
    """
    facts = (_TRIED_AS, head, torch.__version__, torch.get_num_threads())
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    if key not in _known:
        directory = cache_directory()
        path = None if directory is None else directory / "parts" / f"{key}.json"
        try:
            kept: Any = {} if path is None else json.loads(path.read_text())
            _known[key] = Parts(*kept["parts"]) if kept["parts"] else None
        except (OSError, ValueError, TypeError, KeyError):
            _known[key] = _try_parts(head)
            log.info("%s: the same bits in %s", head, _known[key])
            if path is not None:
                _store(path, _known[key])
    return _known[key]


def _store(path: Path, parts: Parts | None) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"parts": parts}), force=True)
    except (OSError, LowtideError) as error:
        log.info("what gives the same bits is not kept: %s: %s", path, error)


def _try_parts(head: Head) -> Parts | None:
    generator = torch.Generator().manual_seed(0)

    def numbers(layout: Layout, size: float = 1.0) -> torch.Tensor:
        made = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
        return made.normal_(0.0, size, generator=generator)

    with torch.no_grad():
        hidden = numbers(head.hidden)
        # Logits of order one: kernels are slow on gradients that are almost zero.
        matrix = numbers(head.matrix, len(hidden[0]) ** -0.5)
        bias = None if head.bias is None else numbers(head.bias)
        target = torch.randint(0, matrix.shape[1], (len(hidden),), generator=generator)
        target[0] = head.loss.ignore_index
        logs = _logits(hidden, matrix, bias).to(head.loss.dtype)
        aten._log_softmax.out(logs, 1, False, out=logs)
        how = (None, head.loss.reduction, head.loss.ignore_index)
        whole = aten.nll_loss_forward(logs, target, *how)
        gradient = torch.rand(whole[0].shape, generator=generator).to(logs.dtype)
        sent = gradient_over(logs, gradient, target, *how, whole[1]).to(hidden.dtype)
        del logs
        of_hidden = torch.mm(sent, matrix.t())
        of_matrix = torch.mm(sent.t(), hidden).t()
        if head.is_transposed:
            of_matrix = torch.mm(hidden.t(), sent)
        of_bias = sent.sum([0], True)
        del sent
        given = _Given(gradient, hidden, matrix, bias, target, whole[1], head.loss)

        def is_loss(rows: int) -> bool:
            made = head_loss(hidden, matrix, bias, target, head.loss, Parts(rows, 0))
            return all(map(same_bits, made, whole))

        def is_by_rows(rows: int) -> bool:
            made = given.by_rows(rows)
            return all(same_bits(of_hidden[some], part) for some, part in made)

        def is_by_words(words: int) -> bool:
            return all(
                same_bits(of_matrix[:, some], part if head.is_transposed else part.t())
                and (summed is None or same_bits(of_bias[:, some], summed))
                for some, part, summed in given.by_words(words, head.is_transposed)
            )

        few = (n for n in ROWS if n < len(hidden))
        rows = next((n for n in few if is_by_rows(n) and is_loss(n)), 0)
        few = (n for n in WORDS if n < matrix.shape[1])
        words = next((n for n in few if rows and is_by_words(n)), 0)
    return Parts(rows, words) if words else None
