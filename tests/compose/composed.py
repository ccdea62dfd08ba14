"""docker-compose.yml as its tests read it, and its services as processes of this machine."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from tests.stack import REPOSITORY

FILE: Final = REPOSITORY / "docker-compose.yml"
_VARIABLE: Final = re.compile(r"\$\$|\$\{(?P<name>\w+)(?P<kind>:[-?])?(?P<text>[^}]*)\}")


def values(file: Path = REPOSITORY / ".env") -> dict[str, str]:
    """Return what an environment file sets."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def compose(given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the file with these values in place of its variables, by default those of ``.env``."""
    known = values() if given is None else given

    def filled(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        value = known.get(match["name"], "")
        if value or match["kind"] is None:
            return value
        assert match["kind"] == ":-", f"{match['name']} is missing: {match['text']}"
        return match["text"]

    text = _VARIABLE.sub(filled, FILE.read_text(encoding="utf-8"))
    return cast("dict[str, Any]", yaml.safe_load(text))


def variables() -> dict[str, str]:
    """Return the file's variables, each with ``:-`` (has a default) or ``:?`` (must be given)."""
    found = _VARIABLE.finditer(FILE.read_text(encoding="utf-8"))
    return {match["name"]: match["kind"] or "" for match in found if match["name"]}


def seconds(duration: str) -> int:
    """Return a duration of the file in seconds."""
    found = re.fullmatch(r"(\d+)s", duration)
    assert found is not None, duration
    return int(found[1])


@dataclass(frozen=True)
class Here:
    """Where this machine has what the file's containers have: texts of the file, and what they become."""

    places: Mapping[str, str]

    def put(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text


@dataclass
class Service:
    """One service of the file as a process."""

    name: str
    definition: dict[str, Any]
    here: Here
    env: dict[str, str]
    cwd: Path
    process: asyncio.subprocess.Process | None = None

    async def is_healthy(self) -> bool:
        """Run the service's own health check."""
        assert self.process is not None
        assert self.process.returncode is None, (
            f"{self.name} ended at its start with {self.process.returncode}"
        )
        kind, *argv = self.definition["healthcheck"]["test"]
        assert kind == "CMD"
        return await run([self.here.put(word) for word in argv], self.env, self.cwd) == 0

    async def stop(self) -> int:
        """End the service as `docker compose stop` does; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(seconds(self.definition["stop_grace_period"])):
            return await self.process.wait()


async def run(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> int:
    """Run a command to its end; return its exit code."""
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, cwd=cwd, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(60):
        return await process.wait()


@asynccontextmanager
async def running(
    name: str, here: Here, *, cwd: Path, secrets: Path, log: Path, given: Mapping[str, str] | None = None
) -> AsyncIterator[Service]:
    """Run a service by its command and environment, with the secrets that it is given and no others."""
    definition = compose(given)["services"][name]
    folder = log.parent / f"{name}-secrets"
    folder.mkdir()
    for secret in definition.get("secrets", []):
        (folder / secret).write_text(
            here.put((secrets / secret).read_text(encoding="utf-8")), encoding="utf-8"
        )
    environment = {key: here.put(str(value)) for key, value in definition["environment"].items()}
    env = {
        # `python` is this environment's; nothing else of ours comes through.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TURNSAGA_SECRETS_DIR": str(folder),
        **environment,
    }
    service = Service(name, definition, here, env, cwd)
    with log.open("wb") as output:
        argv = [here.put(word) for word in definition["command"]]
        service.process = await asyncio.create_subprocess_exec(
            *argv, env=env, cwd=cwd, stdout=output, stderr=output
        )
        try:
            yield service
        finally:
            if service.process.returncode is None:
                service.process.kill()
                await service.process.wait()
