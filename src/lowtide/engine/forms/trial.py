"""Which parts of a head give the bits of the whole, on this device and these sizes.

It is tried once, on numbers of our own, and remembered in this process and on disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch

from lowtide.engine.bits import same_bits
from lowtide.engine.costs.cache import cache_directory
from lowtide.engine.forms.head import (
    Given,
    Head,
    Layout,
    Parts,
    Picked,
    Read,
    head_loss,
    logits_of,
    slices,
)
from lowtide.engine.forms.loss import gradient_over
from lowtide.errors import LowtideError
from lowtide.step.files import write_whole

aten = torch.ops.aten
log = logging.getLogger("lowtide.profile")

# How many rows, and how many words, are tried: the fewest that give the same bits.
ROWS = (128, 256, 512, 1024)
WORDS = (1024, 2048, 4096, 8192)
# Over how many rows a product may add up before it adds the sums to each other.
TOKENS = (192, 256, 320, 336, 384, 448, 512, 768, 1024, 1536)
# So many words tell which of these may do.
_SOME_WORDS = 512
# What was kept under another number is tried anew.
_TRIED_AS = 2
# Found in this process.
_known: dict[str, Parts | None] = {}


def default_parts(head: Head) -> Parts | None:
    """What is taken where nothing can be tried, or None for a head that is small."""
    rows, words = head.hidden.shape[0], head.matrix.shape[1]
    if rows <= ROWS[0] or words <= WORDS[0]:
        return None
    # What MKL's products most often ask for, if it is less than the whole.
    few = (max(n for n in ROWS[:2] if n < rows), max(n for n in WORDS[:2] if n < words))
    return Parts(*few, 384 if _may_add_tokens(head) and rows > 384 else 0)


def _may_add_tokens(head: Head) -> bool:
    """Whether sums over rows can be added in place: 16 bits would be rounded twice."""
    return head.bias is None and head.hidden.dtype.itemsize >= 4


def exact_parts(head: Head) -> Parts | None:
    """The parts in which a head gives the bits of the whole here; None if none does."""
    facts = (_TRIED_AS, head, torch.__version__, torch.get_num_threads())
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    if key not in _known:
        directory = cache_directory()
        path = None if directory is None else directory / "parts" / f"{key}.json"
        try:
            kept: Any = {} if path is None else json.loads(path.read_text())
            _known[key] = Parts(*kept["parts"]) if kept["parts"] else None
        except (OSError, ValueError, TypeError, KeyError):
            with torch.no_grad():
                _known[key] = _Trial(head).parts()
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


class _Trial:
    """A head as a whole, on numbers of our own, to compare its parts with."""

    def __init__(self, head: Head) -> None:
        self.head, loss = head, head.loss
        self.generator = torch.Generator().manual_seed(0)
        hidden = self.numbers(head.hidden)
        # Logits of order one: kernels are slow on gradients that are almost zero.
        matrix = self.numbers(head.matrix, len(hidden[0]) ** -0.5)
        bias = None if head.bias is None else self.numbers(head.bias)
        rows, words = len(hidden), matrix.shape[1]
        target = torch.randint(0, words, (rows,), generator=self.generator)
        target[0] = loss.ignore_index
        self.read = Read(hidden, matrix, bias, target)
        logs = logits_of(hidden, matrix, bias).to(loss.dtype)
        aten._log_softmax.out(logs, 1, False, out=logs)
        how = (None, loss.reduction, loss.ignore_index)
        self.whole = aten.nll_loss_forward(logs, target, *how)
        gradient = torch.rand(self.whole[0].shape, generator=self.generator)
        gradient = gradient.to(logs.dtype)
        total = self.whole[1]
        sent = gradient_over(logs, gradient, target, *how, total).to(hidden.dtype)
        del logs
        self.given = Given(gradient, self.read, total, loss, head.is_transposed)
        self.of_hidden = torch.mm(sent, matrix.t())
        self.of_matrix = torch.mm(*self.given.factors(sent))
        self.of_bias = sent.sum([0], True)
        few = [n for n in TOKENS if n < rows] if _may_add_tokens(head) else []
        self.tokens = [n for n in few if self.may_add(sent[:, :_SOME_WORDS], n)]

    def numbers(self, layout: Layout, size: float = 1.0) -> torch.Tensor:
        made = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
        return made.normal_(0.0, size, generator=self.generator)

    def parts(self) -> Parts | None:
        """The smallest parts that give the same bits."""
        few = (n for n in ROWS if n < len(self.read.hidden))
        rows = next((n for n in few if self.is_by_rows(n) and self.is_loss(n)), 0)
        few = (n for n in WORDS if n < self.read.matrix.shape[1])
        words = next((n for n in few if rows and self.is_by_words(n)), 0)
        if not words:
            return None
        found = (n for n in self.tokens if self.is_at_once(Parts(rows, words, n)))
        parts = Parts(rows, words, next(found, 0))
        is_exact = bool(parts.tokens) or self.is_at_once(parts)
        return parts if is_exact else None

    def may_add(self, sent: torch.Tensor, tokens: int) -> bool:
        """Whether so many rows at a time add up to the same, for a few words."""
        total = None
        for some in slices(len(sent), tokens):
            total = self.given.add_tokens(total, sent[some], some)
        whole = self.given.for_words(self.of_matrix, slice(sent.shape[1]))
        return total is not None and same_bits(total, whole)

    def is_at_once(self, parts: Parts) -> bool:
        picked = Picked(self.read, self.head.loss)
        of_hidden, of_matrix, _ = self.given.gradients(parts, picked)
        made = (of_matrix, of_hidden, *picked.loss())
        return all(map(same_bits, made, (self.of_matrix, self.of_hidden, *self.whole)))

    def is_loss(self, rows: int) -> bool:
        made = head_loss(self.read, self.head.loss, Parts(rows, 0))
        return all(map(same_bits, made, self.whole))

    def is_by_rows(self, rows: int) -> bool:
        turned = self.read.matrix.t()
        return all(
            same_bits(self.of_hidden[some], torch.mm(logits, turned))
            for some, logits in self.given.differentiated(rows)
        )

    def is_by_words(self, words: int) -> bool:
        return all(
            same_bits(self.given.for_words(self.of_matrix, some), part)
            and (summed is None or same_bits(self.of_bias[:, some], summed))
            for some, part, summed in self.given.by_words(words)
        )
