"""The torch-free stages stay torch-free, as declared and as run."""

import subprocess
import sys
import tomllib
from pathlib import Path

# Every room that must plan, simulate or report without torch.
TORCH_FREE = set("chains errors planners reporting step".split())
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_contract_names_every_torch_free_stage():
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"][
        "contracts"
    ]
    forbidden = next(c for c in contracts if c["type"] == "forbidden")
    named = {name.removeprefix("lowtide.") for name in forbidden["source_modules"]}
    assert named == TORCH_FREE


def test_torch_free_stages_and_the_shell_load_no_torch():
    names = sorted(TORCH_FREE | {"cli"})
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
