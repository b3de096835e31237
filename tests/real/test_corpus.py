"""Models of the corpus, really trained with and without lowtide."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.corpus import SAMPLE
from benchmarks.zoo.verdict import reason_of, verdict_of

pytestmark = [pytest.mark.real, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1800)
def test_a_sample_of_the_corpus_trains_to_the_same_bits(tmp_path):
    results = tmp_path / "corpus.json"
    command = [sys.executable, "benchmarks/corpus.py", "--sample", "--to", results]
    subprocess.run(command, cwd=ROOT, check=True)
    known = json.loads(results.read_text())
    assert sorted(known) == sorted(SAMPLE)
    wrong = {
        name: f"{verdict_of(record)}: {reason_of(record)}"
        for name, record in known.items()
        if verdict_of(record) != "planned"
    }
    assert not wrong
