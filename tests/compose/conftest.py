"""The image's folder, as its Dockerfile makes it."""

import shutil
from pathlib import Path

import pytest

from tests.compose.dockerfile import stage
from tests.stack import REPOSITORY


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the image has in its working directory, and nothing else."""
    folder = tmp_path_factory.mktemp("image") / "app"
    for source, target in stage("runtime").copied:
        shutil.copytree(REPOSITORY / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
