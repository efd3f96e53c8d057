"""What a script's text tells about its backend, before anybody runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.launch.script import Reading, read_script

SET = "import os\nos.environ['KERAS_BACKEND'] = 'torch'\n"


def read(folder: Path, text: str, **environ: str) -> Reading:
    script = folder / "train.py"
    script.write_text(text)
    return read_script(str(script), False, environ)


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n",
        "import os\nimport numpy as np\nfrom math import pi\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n",
        "from os import environ\nenviron['KERAS_BACKEND'] = 'torch'\n",
        "import os\nBACKEND = 'torch'\nos.environ['KERAS_BACKEND'] = BACKEND\n",
        "import os\nos.environ.setdefault('KERAS_BACKEND', 'torch')\n",
        "import os\nos.environ.update({'KERAS_BACKEND': 'torch'})\n",
        "import os\nos.environ.update(KERAS_BACKEND='torch')\n",
        "import os\nos.environ |= {'KERAS_BACKEND': 'torch'}\n",
        "import os\nif 'KERAS_BACKEND' not in os.environ:\n    os.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n",
        "import os\nif not os.environ.get('KERAS_BACKEND'):\n    os.environ['KERAS_BACKEND'] = 'torch'\n",
        "import os\nos.environ['KERAS_BACKEND'] = os.environ.get('KERAS_BACKEND', 'torch')\n",
        "import os\nos.environ['KERAS_BACKEND'] = os.getenv('KERAS_BACKEND', 'torch')\n",
        "import os\nif __name__ == '__main__':\n    os.environ['KERAS_BACKEND'] = 'torch'\n    import keras\n",
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n",
        "import keras\nkeras.config.set_backend('torch')\n",
    ],
)
def test_a_backend_that_the_script_chooses_in_any_case_is_found_in_its_text(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert found.backend == "torch"
    assert found.leaves_environment, "keras can be imported for all workers at once"


@pytest.mark.parametrize(
    "text",
    [
        "import keras\n",
        "import os\nprint(os.environ['HOME'])\nif os.environ.get('DEBUG') == '1':\n    print('hm')\nimport keras\n",
        "import keras\nimport os\nos.environ['KERAS_BACKEND'] = 'torch'\n",
        "import tensorflow as tf\nimport os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n",
        "import keras\nimport os\nos.environ['XLA_FLAGS'] = ''\n",
        "import os\nif 'HOME' in os.environ:\n    del os.environ['HOME']\n",
    ],
)
def test_a_script_that_chooses_none_in_time_leaves_it_to_us(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Reading(None, "", leaves_environment=True)


@pytest.mark.parametrize(
    "text",
    [
        "import os, sys\nos.environ['KERAS_BACKEND'] = sys.argv[1]\n",
        "import os\nfrom settings import BACKEND\nos.environ['KERAS_BACKEND'] = BACKEND\n",
        "import os, sys\nif len(sys.argv) > 1:\n    os.environ['KERAS_BACKEND'] = 'torch'\n",
        "import os\ndef main():\n    os.environ['KERAS_BACKEND'] = 'torch'\n    import keras\nmain()\n",
        "from dotenv import load_dotenv\nload_dotenv()\n",
        "import os\nos.putenv('XLA_FLAGS', '')\n",
        "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\nimport keras\n",
        "import os\nos.environ.pop('TF_CONFIG', None)\n",
        "import os\nkey = input()\nos.environ[key] = 'torch'\n",
        "import os\nfor name in ('A', 'B'):\n    os.environ[name] = '1'\n",
        "import os\nBACKEND = 'jax'\nBACKEND = input()\nos.environ['KERAS_BACKEND'] = BACKEND\n",
        "import os\nos.environ['KERAS_BACKEND'] = 'torch\n",
    ],
)
def test_what_the_text_can_not_tell_is_left_to_the_script(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Reading(None, read(tmp_path, text).where, leaves_environment=False)


def test_what_the_environment_says_counts_where_the_script_asks_for_it(tmp_path: Path) -> None:
    asks = "import os\nos.environ.setdefault('KERAS_BACKEND', 'torch')\n"
    assert read(tmp_path, asks, KERAS_BACKEND="jax").backend is None
    assert read(tmp_path, SET, KERAS_BACKEND="jax").backend == "torch"


def test_other_variables_are_no_matter_for_the_backend(tmp_path: Path) -> None:
    found = read(tmp_path, "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n" + SET)
    assert (found.backend, found.where, found.leaves_environment) == ("torch", "train.py:4", False)


def test_modules_beside_the_script_are_read_where_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("import train\n" + SET)  # each imports the other
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("from . import dense\n")
    (tmp_path / "models" / "dense.py").write_text("import keras\n")
    assert read(tmp_path, "import settings\nimport keras\n") == Reading("torch", "settings.py:3", True)
    assert read(tmp_path, "from settings import *\nfrom models import dense\n").backend == "torch"
    assert read(tmp_path, "import models\nimport settings\n").backend is None, "keras was there before"


def test_of_a_module_its_packages_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text(SET)
    (tmp_path / "lab" / "train.py").write_text("import keras\n")
    assert read_script("lab.train", True, {}) == Reading("torch", "lab/__init__.py:2", True)
