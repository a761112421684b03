"""Which control plane a command is for. Pure: arguments, environment and contexts come in as values.

Explicit arguments win over ``GPULAYER_URL`` and its kin, which win over the current context, which wins over the
background control plane of this user's state folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.client.location import LOCAL, REMOTE, Configured, Local, Location, name_shown
from gpulayer.errors import Unauthenticated, UsageError

if TYPE_CHECKING:
    from gpulayer.client.contexts import Contexts

__all__ = ["is_context_wanted", "locate"]


def is_context_wanted(*, environment: Mapping[str, str], url: str = "", target: str = "") -> bool:
    """Whether ``locate`` looks at the contexts: where a URL is given, their file need not even be readable."""
    return target not in ("", LOCAL, REMOTE) or (target != LOCAL and not (url or environment.get("GPULAYER_URL")))


def locate(
    *,
    environment: Mapping[str, str],
    state_dir: Path,
    url: str = "",
    token: str = "",
    fingerprint: str = "",
    target: str = "",
    contexts: "Contexts | None" = None,
) -> Configured | Local:
    """Where to go. Raises UsageError (nothing configured for ``remote``, no such context, an address that is none),
    Unauthenticated (an address without a token)."""
    chosen_url = url or environment.get("GPULAYER_URL", "")
    proxy = environment.get("GPULAYER_PROXY", "")
    if target == LOCAL:
        return Local(state_dir)
    if target not in ("", REMOTE) or not chosen_url:
        name = target if target not in ("", REMOTE) else "" if contexts is None else contexts.current
        if not name and target == REMOTE:
            raise UsageError(
                "--target remote: no control plane is configured",
                hint="gpulayer context add NAME URL adds one; or set GPULAYER_URL and GPULAYER_TOKEN",
            )
        if not name:
            return Local(state_dir)
        if contexts is None:
            raise UsageError(f"there is no context {name_shown(name)}", hint="gpulayer context add NAME URL adds one")
        return Configured(contexts.find(name).location(proxy=proxy), name)
    chosen_token = token or environment.get("GPULAYER_TOKEN", "")
    location = Location.of(
        chosen_url,
        chosen_token,
        fingerprint=fingerprint or environment.get("GPULAYER_FINGERPRINT", ""),
        proxy=proxy,
    )
    if not chosen_token:
        raise Unauthenticated(
            f"{location.addresses[0]} needs a token",
            hint="set GPULAYER_TOKEN to the client token that `gpulayer up` printed",
        )
    return Configured(location)
