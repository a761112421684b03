"""The face's one look at the outside: environment variables and the user's state folder, resolved into ``Settings``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gpulayer
from gpulayer.client.connect import Settings
from gpulayer.client.location import Target, locate
from gpulayer.errors import UsageError

__all__ = ["resolve_settings", "state_folder"]

_USER_AGENT: Final = f"gpulayer/{gpulayer.__version__}"


def resolve_settings(
    *,
    url: str = "",
    token: str = "",
    state_dir: str | os.PathLike[str] = "",
    target: Target = Target.DEFAULT,
    environment: Mapping[str, str] | None = None,
    retry_for_s: float = 5.0,
) -> Settings:
    """Read GPULAYER_URL, GPULAYER_TOKEN, GPULAYER_STATE_DIR and GPULAYER_IDLE_EXIT_S. Raises what ``locate`` raises."""
    env = dict(os.environ if environment is None else environment)
    return Settings(
        where=locate(
            environment=env, state_dir=state_folder(env, state_dir=state_dir), url=url, token=token, target=target
        ),
        environment=env,
        version=gpulayer.__version__,
        client=_USER_AGENT,
        idle_exit_s=_seconds(env, "GPULAYER_IDLE_EXIT_S"),
        retry_for_s=retry_for_s,
    )


def state_folder(environment: Mapping[str, str], *, state_dir: str | os.PathLike[str] = "") -> Path:
    """Where this user's control plane keeps its state: the argument, GPULAYER_STATE_DIR, or the platform's place."""
    chosen = os.fspath(state_dir) or environment.get("GPULAYER_STATE_DIR", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_state_path  # noqa: PLC0415 - not needed where the folder is named

    return user_state_path("gpulayer", appauthor=False)


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
