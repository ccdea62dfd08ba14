"""The Dockerfile, read by stage."""

import re
from dataclasses import dataclass

from tests.stack import REPOSITORY


@dataclass(frozen=True)
class Stage:
    """One stage of the image: its instructions, each on a line of its own."""

    base: str
    lines: tuple[str, ...]

    @property
    def copied(self) -> tuple[tuple[str, str], ...]:
        """What is copied from the repository, and where to."""
        found: list[tuple[str, str]] = []
        for line in self.lines:
            instruction, *words = line.split()
            if instruction == "COPY" and not words[0].startswith("--from"):
                found += [(source, words[-1]) for source in words[:-1]]
        return tuple(found)


def stage(name: str) -> Stage:
    """Return the stage of that name."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    plain = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in plain.splitlines() if line.strip()]
    start = next(at for at, line in enumerate(lines) if re.fullmatch(rf"FROM \S+ AS {name}", line))
    rest = lines[start + 1 :]
    end = next((at for at, line in enumerate(rest) if line.startswith("FROM ")), len(rest))
    return Stage(lines[start].split()[1], tuple(rest[:end]))
