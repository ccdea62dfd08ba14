"""How a process reads its settings: the environment first, then files, and one line about what is wrong.

It knows nothing of the product, so that the sandbox reads its settings by the same rules.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

__all__ = ["SECRETS", "Settings", "SettingsRefused", "exit_code", "holds_secret", "read_settings", "variable"]

SECRETS: Final = Path("/run/secrets")
"""Where Docker mounts secrets, and Kubernetes where its manifests say so."""

S = TypeVar("S", bound="Settings")


class SettingsRefused(Exception):
    """A setting can't be used; says which one and why, in one line."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting


class Settings(BaseSettings):
    """The base of every settings class; one below gives the prefix of its variables.

    What isn't in the environment is looked for in a file of the variable's name, in upper or lower case.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    secrets_dir: Path | None = Field(
        default=None, description="folder of files named like settings; if not set, `/run/secrets` if there"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, the strongest first."""
        return init_settings, env_settings, _SecretFiles(settings_cls)


class _SecretFiles(SecretsSettingsSource):
    """Files of a folder that the sources before may name. One that can't be read is refused.

    The library warns and goes on with the default instead, and a default is no good secret.
    """

    def __call__(self) -> dict[str, Any]:
        given: str | Path | None = self.current_state.get("secrets_dir")
        folder = SECRETS if given is None else Path(given)
        if not folder.is_dir():
            if given is None:
                return {}
            raise SettingsRefused(
                variable(self.settings_cls, "secrets_dir"), f"{str(folder)!r} isn't a folder"
            )
        self.secrets_dir = folder
        return super().__call__()

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        name = variable(self.settings_cls, field_name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                return super().get_field_value(field, field_name)
        except OSError as error:
            raise SettingsRefused(
                name, f"its file {error.filename!r} can't be read ({error.strerror})"
            ) from error
        except UnicodeDecodeError as error:
            raise SettingsRefused(name, f"its file in {str(self.secrets_dir)!r} isn't UTF-8") from error
        except UserWarning as error:
            raise SettingsRefused(name, str(error)) from error


def variable(kind: type[BaseSettings], field: str) -> str:
    """Return the environment variable of a field."""
    return f"{kind.model_config.get('env_prefix', '')}{field}".upper()


def holds_secret(field: FieldInfo) -> bool:
    """Tell whether the values of a field are kept out of logs and error lines."""
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


def read_settings(kind: type[S]) -> S:
    """Return the settings that this process was given.

    Raises:
        SettingsRefused: one of them can't be used.
    """
    try:
        return kind()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        given = "" if holds_secret(kind.model_fields[name]) else f"={str(first['input'])!r}"
        raise SettingsRefused(f"{variable(kind, name)}{given}", first["msg"]) from None
    except SettingsError as error:
        # It hides what the source raised behind a line of its own.
        if isinstance(error.__cause__, SettingsRefused):
            raise error.__cause__ from None
        raise


def exit_code(part: str, run: Callable[[], int], *refusals: type[Exception]) -> int:
    """Return what ``run`` returns; 2, after one line on stderr, if it refuses to start.

    ``refusals`` are the errors beside ``SettingsRefused`` that say what to do about a start.
    """
    told: tuple[type[Exception], ...] = (SettingsRefused, *refusals)
    try:
        return run()
    except told as error:
        sys.stderr.write(f"{part}: {' '.join(str(error).split())}\n")
        return 2
