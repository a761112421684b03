"""The face's one look at the outside: environment variables and the user's state folder, resolved into ``Settings``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpulayer
from gpulayer.client.connect import Settings
from gpulayer.client.locate import is_context_wanted, locate
from gpulayer.errors import UsageError

if TYPE_CHECKING:
    from gpulayer.client.contexts import Contexts

__all__ = ["CONTEXTS_FILE", "USER_AGENT", "config_folder", "resolve_settings", "state_folder"]

CONTEXTS_FILE: Final = "contexts.json"

USER_AGENT: Final = f"gpulayer/{gpulayer.__version__}"


def resolve_settings(
    *,
    url: str = "",
    token: str = "",
    fingerprint: str = "",
    state_dir: str | os.PathLike[str] = "",
    target: str = "",
    environment: Mapping[str, str] | None = None,
    retry_for_s: float = 5.0,
) -> Settings:
    """Read GPULAYER_URL, _TOKEN, _FINGERPRINT, _PROXY, _STATE_DIR, _CONFIG_DIR and _IDLE_EXIT_S, and, where no URL is
    given, the file of contexts. Raises what ``locate`` raises, and UsageError for a damaged file."""
    env = dict(os.environ if environment is None else environment)
    contexts: Contexts | None = None
    file = None
    if is_context_wanted(environment=env, url=url, target=target):
        file = config_folder(env) / CONTEXTS_FILE
        if os.path.lexists(file):
            from gpulayer.client.contexts import read_contexts  # noqa: PLC0415 - most users have none

            contexts = read_contexts(file)
    return Settings(
        where=locate(
            environment=env,
            state_dir=state_folder(env, state_dir=state_dir),
            url=url,
            token=token,
            fingerprint=fingerprint,
            target=target,
            contexts=contexts,
        ),
        environment=env,
        version=gpulayer.__version__,
        client=USER_AGENT,
        idle_exit_s=_seconds(env, "GPULAYER_IDLE_EXIT_S"),
        retry_for_s=retry_for_s,
        contexts=file,
    )


def state_folder(environment: Mapping[str, str], *, state_dir: str | os.PathLike[str] = "") -> Path:
    """Where this user's control plane keeps its state: the argument, GPULAYER_STATE_DIR, or the platform's place."""
    chosen = os.fspath(state_dir) or environment.get("GPULAYER_STATE_DIR", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_state_path  # noqa: PLC0415 - not needed where the folder is named

    return user_state_path("gpulayer", appauthor=False)


def config_folder(environment: Mapping[str, str]) -> Path:
    """Where what this user has set up is kept: GPULAYER_CONFIG_DIR, or the platform's place."""
    chosen = environment.get("GPULAYER_CONFIG_DIR", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_config_path  # noqa: PLC0415 - not needed where the folder is named

    return user_config_path("gpulayer", appauthor=False)


def _seconds(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise UsageError(f"{name}={text!r} is not a number of seconds", hint=f"unset it, or set {name}=600")
    return value
