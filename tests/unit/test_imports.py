"""The torch-free stages stay torch-free, as declared and as run."""

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import lowtide

# Every stage that must plan, simulate or report without torch, present or to come.
TORCH_FREE = set(
    "_diff _explain _format _graph _names _plan _planning _queries _report _schedule "
    "_simulate _sweep _text "
    "_units chains errors planners".split()
)
MODULES = {module.name for module in pkgutil.iter_modules(lowtide.__path__)}
PRESENT = TORCH_FREE & MODULES
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_contract_names_every_torch_free_stage():
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (forbidden,) = [c for c in contracts if c["type"] == "forbidden"]
    named = {name.removeprefix("lowtide.") for name in forbidden["source_modules"]}
    assert named == PRESENT


def test_torch_free_stages_and_the_shell_load_no_torch():
    names = sorted(PRESENT | ({"cli"} & MODULES))
    code = "; ".join(
        [
            "import sys, lowtide",
            *(f"import lowtide.{name}" for name in names),
            "heavy = {'torch', 'transformers', 'torchvision'} & set(sys.modules)",
            "sys.exit(f'loaded {heavy}' if heavy else 0)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
