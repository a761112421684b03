"""The names of contexts, for a shell that completes; apart from the commands, so that every command can offer them."""

import os

from gpulayer.client.contexts import read_contexts
from gpulayer.errors import GpulayerError
from gpulayer.sdk.settings import CONTEXTS_FILE, config_folder

__all__ = ["context_names"]


def context_names(incomplete: str) -> list[str]:
    """Those that begin so; none where the file can't be read."""
    try:
        known = read_contexts(config_folder(os.environ) / CONTEXTS_FILE).named
    except GpulayerError:
        return []
    return [name for name in known if name.startswith(incomplete)]
