"""The head of a language model and its loss, some rows or some words at a time.

The largest tensors of such a step have a number for every token and every word: the
logits, their log-softmax, its gradient. No op behind the matrix product needs all of
them at once. The loss needs whole rows, so does the gradient of what the head reads;
the gradient of its matrix needs whole columns. So both can be computed in parts, each
with the kernels of the whole, and no tensor of that size is ever there:

* forward: some rows of logits, their log-softmax, the one number of each that counts;
* backward: the rows again, their gradient, and from that the gradient of what was read;
  then some columns of logits again, their gradient, and those rows of the matrix's.

Where no time is to be lost, the gradients are made in the forward, with the rows of
logits that are there anyway (`head_ahead`). They depend on the gradient of the loss,
which arrives later. It is nearly always the same number, most often 1; so it is taken
to be the one that came last, and if another one comes, they are made again then.

The gradient of the matrix is a sum over all rows. A product over many rows adds up some
hundred at a time, and adds these sums to each other in order. Rows in numbers that fit
this give the same sums, added in place (`Parts.tokens`).

A column of a log-softmax is `(x - m) - s`, with the maximum of its row and the
logarithm of its sum, which the rows have left. Its gradient takes the sum of a row of
gradients, all of which are zero but one. An extra column holds that one for the words
that are not among those at hand.

A kernel for another number of rows may add in another order. So a number of rows and
of words is looked for with which all bits are the same, here and for these sizes
(`engine/forms/trial.py`), and where there is none the head stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch._subclasses import FakeTensor

from lowtide.engine.bits import same_bits
from lowtide.engine.forms.loss import is_graph_kept, rows_at_once

aten = torch.ops.aten

_IGNORED = -100
# More rows than these are never computed at once where they make others.
_MOST_ROWS = 1536
# Forms that make gradients with the loss.
AHEAD = ("head_ahead", "head_arrived")
# For each head, the gradient of its loss that came last.
_arrived: dict[tuple[object, ...], torch.Tensor] = {}


class Parts(NamedTuple):
    """How many rows and how many words are computed at once.

    `tokens` is the number of rows whose products are added up to the gradient of the
    matrix, or 0 if that has to be made for some words at a time.
    """

    rows: int
    words: int
    tokens: int = 0


class Read(NamedTuple):
    """What a head and its loss read; `hidden` is [rows, width]."""

    hidden: torch.Tensor
    matrix: torch.Tensor
    bias: torch.Tensor | None
    target: torch.Tensor


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
        return max(parts.rows / rows, parts.words / words, parts.tokens / rows)

    def scratch_bytes(self, name: str, parts: Parts) -> int:
        """What one of its forms needs beside arguments and results.

        The gradient of the matrix is not there yet while only rows are computed.
        """
        rows, (width, words) = self.hidden.shape[0], self.matrix.shape
        own = self.hidden.dtype.itemsize
        tokens = parts.tokens if name in AHEAD else 0
        needs = self._part_bytes(tokens or parts.rows, words)
        if name == "head_gradients":
            needs -= width * words * own
        if name != "head_loss" and not tokens:
            by_words = self._part_bytes(rows, parts.words + 1)
            needs = max(needs, by_words + parts.words * width * own)
        return needs + self._row_bytes * rows

    @property
    def _row_bytes(self) -> int:
        """What is held for each row: its maximum, its sum, its target, and the like."""
        return 6 * self.loss.dtype.itemsize + 4 * 8

    def _part_bytes(self, rows: int, words: int) -> int:
        """So many logits, what they make of what the head reads, and a few at once."""
        own = self.hidden.dtype.itemsize
        few = rows_at_once(rows, words, own) * words
        made = (rows * words + min(rows, _MOST_ROWS) * self.hidden.shape[1]) * own
        return made + few * (3 * self.loss.dtype.itemsize + 4)


def head_loss(
    read: Read, loss: Loss, parts: Parts
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the number of rows that count, as `nll_loss_forward` has them."""
    hidden, matrix, bias, _ = read
    picked = Picked(read, loss)
    for some in slices(len(hidden), parts.rows):
        for here, block in _blocks(logits_of(hidden[some], matrix, bias), loss, some):
            aten._log_softmax.out(block, 1, False, out=block)
            picked.take(here, block)
            del block
    return picked.loss()


def head_ahead(
    read: Read, loss: Loss, is_transposed: bool, parts: Parts
) -> tuple[torch.Tensor, ...]:
    """What `head_loss` returns, and the gradients for what is taken to arrive.

    Those are of the matrix and of what the head reads; behind them stands for which
    gradient of the loss they were made.
    """
    first = torch.ones((), dtype=loss.dtype)
    taken = _arrived.get(_kind(read, loss), first).clone()
    picked = Picked(read, loss)
    # It counts the rows, whatever their numbers are.
    total = picked.loss()[1]
    given = Given(taken, read, total, loss, is_transposed)
    of_hidden, of_matrix, _ = given.gradients(parts, picked)
    return (*picked.loss(), of_matrix, of_hidden, taken)


def head_arrived(
    gradient: torch.Tensor,
    read: Read,
    total_weight: torch.Tensor,
    loss: Loss,
    is_transposed: bool,
    of_matrix: torch.Tensor,
    of_hidden: torch.Tensor,
    taken: torch.Tensor,
    may_take: bool,
    parts: Parts,
) -> tuple[torch.Tensor, ...]:
    """The gradients that were made ahead, if they are those of what has arrived.

    That of the matrix is handed on if nobody else will read it (`may_take`).
    """
    may_take = may_take and not is_graph_kept()
    if isinstance(gradient, FakeTensor) or same_bits(gradient, taken):
        return of_matrix if may_take else of_matrix.clone(), of_hidden.clone()
    _arrived[_kind(read, loss)] = gradient.clone()
    given = Given(gradient, read, total_weight, loss, is_transposed)
    made = given.gradients(parts, room=of_matrix if may_take else None)
    return made[1], made[0]


def head_gradients(
    gradient: torch.Tensor,
    read: Read,
    total_weight: torch.Tensor,
    loss: Loss,
    is_transposed: bool,
    parts: Parts,
) -> tuple[torch.Tensor, ...]:
    """The gradients of what the head reads, of its matrix, and of its bias."""
    given = Given(gradient, read, total_weight, loss, is_transposed)
    made = given.gradients(parts._replace(tokens=0))
    return tuple(part for part in made if part is not None)


def _kind(read: Read, loss: Loss) -> tuple[object, ...]:
    return (read.hidden.shape, read.matrix.shape, read.hidden.dtype, loss)


class Picked:
    """The one number of each row that counts for the loss."""

    def __init__(self, read: Read, loss: Loss) -> None:
        like, target = read.hidden, read.target
        ignored = target == loss.ignore_index
        self.reduction = loss.reduction
        self.places = target.masked_fill(ignored, 0)[:, None]
        self.first = torch.zeros_like(target).masked_fill_(ignored, _IGNORED)
        self.numbers = like.new_zeros(len(like), 1, dtype=loss.dtype)

    def take(self, here: slice, logs: torch.Tensor) -> None:
        """Note these rows of a log-softmax."""
        self.numbers[here] = logs.gather(1, self.places[here])

    def loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of what was noted, and the number of rows that count."""
        how = (None, self.reduction, _IGNORED)
        return aten.nll_loss_forward(self.numbers, self.first, *how)


class Given:
    """The backward of a head: its arguments, and what its rows leave for its words."""

    def __init__(
        self,
        gradient: torch.Tensor,
        read: Read,
        total_weight: torch.Tensor,
        loss: Loss,
        is_transposed: bool,
    ) -> None:
        self.gradient, self.total_weight, self.loss = gradient, total_weight, loss
        self.hidden, self.matrix, self.bias, self.target = read
        self.is_transposed = is_transposed
        rows = len(self.hidden)
        self.highest = self.hidden.new_empty(rows, 1, dtype=loss.dtype)
        self.log_sum = torch.empty_like(self.highest)

    def gradients(
        self,
        parts: Parts,
        picked: Picked | None = None,
        room: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Those of what the head reads, of its matrix, and of its bias.

        That of the matrix is made in the `room` that is given, or else in new memory.
        """
        of_hidden = self.hidden.new_empty(self.hidden.shape)
        of_matrix = room
        count = parts.tokens or parts.rows
        for some, logits in self.differentiated(count, picked, not parts.tokens):
            torch.mm(logits, self.matrix.t(), out=of_hidden[some])
            if parts.tokens:
                of_matrix = self.add_tokens(of_matrix, logits, some)
            del logits
        if of_matrix is None:
            shape = self.matrix.shape if self.is_transposed else self.matrix.shape[::-1]
            of_matrix = self.hidden.new_empty(shape)
        of_bias = None if self.bias is None else self.bias.new_empty(1, len(self.bias))
        for some, made, summed in () if parts.tokens else self.by_words(parts.words):
            self.for_words(of_matrix, some).copy_(made)
            if of_bias is not None and summed is not None:
                of_bias[:, some] = summed
            del made
        return of_hidden, of_matrix, of_bias

    def factors(
        self, logits: torch.Tensor, rows: slice = slice(None)
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is multiplied to get the gradient of the matrix that some rows make."""
        hidden = self.hidden[rows]
        return (hidden.t(), logits) if self.is_transposed else (logits.t(), hidden)

    def for_words(self, of_matrix: torch.Tensor, some: slice) -> torch.Tensor:
        """The part of a gradient of the matrix that belongs to some words."""
        return of_matrix[:, some] if self.is_transposed else of_matrix[some]

    def add_tokens(
        self, total: torch.Tensor | None, logits: torch.Tensor, some: slice
    ) -> torch.Tensor:
        """The gradient of the matrix with what some rows make of it, in place."""
        if total is None or some.start == 0:
            return torch.mm(*self.factors(logits, some), out=total)
        return total.addmm_(*self.factors(logits, some))

    def differentiated(
        self, count: int, picked: Picked | None = None, for_words: bool = True
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """The gradients of the logits, some rows at a time.

        If columns are computed `for_words` later, what they need of each row is noted.
        """
        loss = self.loss
        for some in slices(len(self.hidden), count):
            logits = logits_of(self.hidden[some], self.matrix, self.bias)
            for here, block in _blocks(logits, loss, some):
                if for_words:
                    self.highest[here] = block.amax(1, keepdim=True)
                aten._log_softmax.out(block, 1, False, out=block)
                if for_words:
                    self.log_sum[here] = block.amax(1, keepdim=True).neg_()
                if picked is not None:
                    picked.take(here, block)
                sent = self.gradient[here] if loss.reduction == 0 else self.gradient
                given = (None, loss.reduction, loss.ignore_index, self.total_weight)
                dense = aten.nll_loss_backward(sent, block, self.target[here], *given)
                aten._log_softmax_backward_data.out(
                    dense, block, 1, loss.dtype, out=block
                )
                if block.dtype != logits.dtype:
                    logits[here.start - some.start : here.stop - some.start] = block
                del block, dense
            yield some, logits
            del logits

    def by_words(
        self, count: int
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None]]:
        """The gradients of matrix and bias, for some words at a time."""
        ignored = self.target == self.loss.ignore_index
        first = torch.zeros_like(self.target).masked_fill_(ignored, _IGNORED)
        given = (first, None, self.loss.reduction, _IGNORED, self.total_weight)
        # Of each row, the one number of its gradient that is not zero.
        sent = aten.nll_loss_backward(self.gradient, self.log_sum, *given)
        for some in slices(self.matrix.shape[1], count):
            bias = None if self.bias is None else self.bias[some]
            logits = logits_of(self.hidden, self.matrix[:, some], bias)
            self._differentiate(logits, some, sent)
            made = torch.mm(*self.factors(logits))
            yield some, made, None if bias is None else logits.sum([0], True)
            del logits, made

    def _differentiate(
        self, logits: torch.Tensor, some: slice, sent: torch.Tensor
    ) -> None:
        """Write the gradient of some columns of logits over them."""
        count, dtype = logits.shape[1], self.loss.dtype
        is_here = (self.target >= some.start) & (self.target < some.stop)
        places = torch.where(is_here, self.target - some.start, count)[:, None]
        for few in slices(len(logits), rows_at_once(*_sizes(logits))):
            logs = logits[few].float().sub(self.highest[few]).sub_(self.log_sum[few])
            block = logits.new_empty(len(logs), count + 1, dtype=dtype)
            block[:, :count] = logs
            block[:, count] = 0
            del logs
            dense = torch.zeros_like(block).scatter_(1, places[few], sent[few])
            aten._log_softmax_backward_data.out(dense, block, 1, dtype, out=block)
            logits[few] = block[:, :count]
            del block, dense


def slices(count: int, step: int) -> Iterator[slice]:
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
    for few in slices(len(logits), rows_at_once(*_sizes(logits))):
        here = slice(some.start + few.start, some.start + few.stop)
        yield here, logits[few].to(loss.dtype)


def logits_of(
    hidden: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    if bias is None:
        return torch.mm(hidden, matrix)
    return torch.addmm(bias, hidden, matrix)
