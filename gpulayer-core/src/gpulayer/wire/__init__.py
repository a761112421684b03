"""The HTTP schemas, version 1: what crosses between client, worker and control plane.

Schemas are typed dictionaries. The server validates them with pydantic at its edge; clients and workers build
and read them as plain JSON, so neither pays for importing pydantic. Readers ignore unknown fields, with one
exception: a *submission* forbids them, because a need that is not understood must never be dropped.
``convert`` is the one place that turns them into domain types and back.
"""

from typing import Final

__all__ = ["SCHEMA_VERSION"]

SCHEMA_VERSION: Final = 1
