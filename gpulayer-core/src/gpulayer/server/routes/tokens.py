"""Tokens: made, listed, revoked and rotated; and the audit trail, which tells of that among other things.

A token is shown once, in the answer to its making, when it is durable; only its hash is kept. What changes a token's
row does so one at a time (``Plane.enrolling``), because joining counts uses in the same rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from gpulayer.clock import iso_utc
from gpulayer.errors import BadRequest, Conflict, NotFound, Unauthenticated
from gpulayer.server.audit import entry
from gpulayer.server.auth import check_token_name
from gpulayer.server.plane import Plane
from gpulayer.server.store import AuditRow, Side, TokenRow, reads
from gpulayer.server.tokens import Role, TokenKind
from gpulayer.server.web import ADMIN, READ, Call, Query, Route, json_response
from gpulayer.wire.tokens import AuditPage, AuditRecord, TokenBody, TokenPage, TokenRecord, TokenReply

__all__ = ["ROUTES", "audit_record"]

_POOL_LIFE_S: Final = 86_400
_GRACE_MS: Final = 10 * 60_000  # how long a rotated token is still good, for whoever holds it in a running program
_OF_JOIN_ALONE: Final = ("max_uses", "labels", "max_devices")


async def create(call: Call) -> Response:
    """Durable before it is shown; only its hash is kept."""
    plane, body = call.plane, await call.json(TokenBody)
    token, row = _join_token(plane, body) if body["role"] == "join" else _client_token(plane, body)
    told = entry(
        *(plane.clock.wall_ms(), call.client, "token.create", row.id),
        role=_role(row),
        name=row.name,
        expires_at=iso_utc(row.expires_wall_ms),
        max_uses=row.max_uses if row.kind == TokenKind.JOIN else None,
        labels=dict(row.labels) or None,
        max_devices=row.max_devices,
    )
    await plane.driver.submit(side=Side(tokens=(row,), audit=(told,)))
    plane.auth.keep_token(row)
    return json_response(_reply(token, row), 201)


async def list_tokens(call: Call) -> Response:
    """Newest first, also those that are no good any more, for as long as they are kept."""
    now_ms = call.plane.clock.wall_ms()
    rows = sorted(call.plane.auth.tokens(), key=lambda row: (-row.created_wall_ms, row.id))
    return json_response({"tokens": [_record(row, now_ms) for row in rows], "next": None})


async def revoke(call: Call) -> Response:
    """They open nothing any more, nor does what they were rotated into: who took one has perhaps rotated it. What was
    revoked already stays so."""
    plane, ref, is_all = call.plane, call.path("ref"), call.query_flag("all")
    async with plane.enrolling:
        now_ms = plane.clock.wall_ms()
        rows = plane.auth.tokens()
        found = _with_successors(_meant(rows, ref, now_ms, is_all=is_all), rows)
        if any(row.is_local and row.kind == TokenKind.CLIENT for row in found):
            raise Conflict(
                "this token is what commands on the control plane's own machine use",
                hint="each start makes a new one: gpulayer down, then gpulayer up",
            )
        changed = tuple(replace(row, is_revoked=True) for row in found if not row.is_revoked)
        if changed:
            told = tuple(
                entry(now_ms, call.client, "token.revoke", row.id, role=_role(row), name=row.name) for row in changed
            )
            await plane.driver.submit(side=Side(tokens=changed, audit=told))
            for row in changed:
                plane.auth.keep_token(row)
            plane.hub.wake(("token", row.id) for row in changed)
        rows = [plane.auth.token(row.id) or row for row in found]
    return json_response({"tokens": [_record(row, now_ms) for row in rows], "next": None})


async def rotate(call: Call) -> Response:
    """The caller's own token, replaced by one that is good for as long as it was at first.

    Asked for again because the answer was lost: the token that nobody received is revoked, and another is made.
    """
    plane = call.plane
    async with plane.enrolling:
        old = plane.auth.token(call.client.token_id)
        if old is None or old.is_local:
            raise Conflict(
                "the token of this machine's own commands is not rotated: each start makes a new one",
                hint="gpulayer token create makes tokens for others",
            )
        if old.is_revoked:  # while this request waited for its turn
            raise Unauthenticated(f"token {old.id} was revoked")
        made_before = [row for row in plane.auth.tokens() if row.replaces == old.id]
        used = next((row for row in made_before if row.used_wall_ms is not None), None)
        if used is not None:
            raise Conflict(f"token {old.id} was rotated already", hint=f"use the new one, {used.id}")
        first = next(iter(made_before), old)
        lost = [row for row in made_before if not row.is_revoked]
        if first.expires_wall_ms is None:
            raise Conflict(f"token {old.id} never ends, so there is nothing to renew", hint="make another, revoke this")
        life_s = (first.expires_wall_ms - first.created_wall_ms) // 1000
        owner = old.owner or old.id
        token, bare = plane.auth.new_token(
            TokenKind.CLIENT, name=old.name, life_s=life_s, role=Role(old.role), owner=owner
        )
        row = replace(bare, replaces=old.id)
        now_ms = plane.clock.wall_ms()
        ends_ms = min(old.expires_wall_ms or first.expires_wall_ms, now_ms + _GRACE_MS)
        rows = [row, replace(old, expires_wall_ms=ends_ms)]
        told = [
            entry(now_ms, call.client, "token.rotate", old.id, into=row.id, expires_at=iso_utc(row.expires_wall_ms))
        ]
        rows += [replace(each, is_revoked=True) for each in lost]
        told += [entry(now_ms, call.client, "token.revoke", each.id, role=each.role, name=each.name) for each in lost]
        await plane.driver.submit(side=Side(tokens=tuple(rows), audit=tuple(told)))
        for each in rows:
            plane.auth.keep_token(each)
        plane.hub.wake(("token", each.id) for each in lost)
    return json_response(_reply(token, row), 201)


async def audit(call: Call) -> Response:
    """``next`` repeats ``after`` where there was nothing new."""
    after = call.query_int("after", 0) or 0
    limit = call.query_int("limit", 200, least=1, most=1000) or 200
    found = await call.plane.query(reads.read_audit, after=after, limit=limit)
    last = found[-1].seq if found else after
    return json_response({"entries": [audit_record(row) for row in found], "next": last})


def _client_token(plane: Plane, body: TokenBody) -> tuple[str, TokenRow]:
    """Raises BadRequest that names the field, as ``_join_token`` does."""
    for field in _OF_JOIN_ALONE:
        if field in body:
            raise BadRequest(f"{field}: only tokens with the role join have it, not {body['role']}")
    role, life_s = Role(body["role"]), body.get("expires_in_s")
    return plane.auth.new_client_token(name=body.get("name", ""), role=role, life_s=life_s)


def _join_token(plane: Plane, body: TokenBody) -> tuple[str, TokenRow]:
    name, uses = body.get("name", ""), body.get("max_uses", 1)
    check_token_name(name)
    life_s = body.get("expires_in_s", plane.settings.join_token_life_s if uses == 1 else _POOL_LIFE_S)
    token, row = plane.auth.new_token(TokenKind.JOIN, name=name, life_s=life_s)
    labels, max_devices = _labels(body.get("labels", {})), body.get("max_devices")
    return token, replace(row, max_uses=uses, labels=labels, max_devices=max_devices)


def _labels(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for key in labels:
        if not key or "=" in key:
            raise BadRequest(f"labels: {key[:80]!r} is not a label's name", hint="write labels as KEY=VALUE")
    return tuple(sorted(labels.items()))


def _meant(rows: Sequence[TokenRow], ref: str, now_ms: int, *, is_all: bool) -> list[TokenRow]:
    """By id, else by name: the one token of that name that is still good, or all of them. One that was rotated is one
    with what it became.

    Raises NotFound, and Conflict where several are good and not all are meant.
    """
    exact = [row for row in rows if row.id == ref]
    if exact:
        return exact
    named = [row for row in rows if row.name == ref]
    if not named:
        raise NotFound(f"no token {ref[:100]!r}", hint="gpulayer token list shows the tokens there are")
    if is_all:
        return named
    good = [row for row in named if _state(row, now_ms) == "valid"]
    ids = {row.id for row in good}
    good = [row for row in good if row.replaces not in ids]
    if len(good) > 1:
        raise Conflict(
            f"{len(good)} tokens of {ref} are good",
            hint="say which by its id, or all of them: --all",
            details={"candidates": [f"{row.id}  {_role(row)}  {iso_utc(row.created_wall_ms)}" for row in good]},
        )
    return good or named


def _with_successors(found: list[TokenRow], rows: Sequence[TokenRow]) -> list[TokenRow]:
    """With all that they were rotated into, however often."""
    meant = {row.id: row for row in found}
    before = 0
    while before < len(meant):
        before = len(meant)
        meant |= {row.id: row for row in rows if row.replaces in meant}
    return list(meant.values())


def _role(row: TokenRow) -> str:
    return row.role or row.kind


def _state(row: TokenRow, now_ms: int) -> str:
    if row.is_revoked:
        return "revoked"
    if row.expires_wall_ms is not None and now_ms >= row.expires_wall_ms:
        return "expired"
    return "used up" if row.kind == TokenKind.JOIN and row.uses >= row.max_uses else "valid"


def _reply(token: str, row: TokenRow) -> TokenReply:
    life_s = ((row.expires_wall_ms or row.created_wall_ms) - row.created_wall_ms) // 1000
    return {"token": token, "token_id": row.id, "role": _role(row), "name": row.name, "expires_in_s": life_s}


def _record(row: TokenRow, now_ms: int) -> TokenRecord:
    is_join = row.kind == TokenKind.JOIN
    return {
        "id": row.id,
        "kind": row.kind,
        "role": _role(row),
        "name": row.name,
        "state": _state(row, now_ms),
        "created_at": iso_utc(row.created_wall_ms) or "",
        "expires_at": iso_utc(row.expires_wall_ms),
        "last_used_at": iso_utc(row.used_wall_ms),
        "max_uses": row.max_uses if is_join else None,
        "uses": row.uses,
        "labels": dict(row.labels),
        "max_devices": row.max_devices,
        "replaces": row.replaces or None,
    }


def audit_record(row: AuditRow) -> AuditRecord:
    """As it goes over the wire."""
    told = row.entry
    return {
        "seq": row.seq,
        "at": iso_utc(told.wall_ms) or "",
        "wall_ms": told.wall_ms,
        "actor": told.actor,
        "action": told.action,
        "subject": told.subject,
        "details": told.details,
        "hash": row.hash,
    }


ROUTES: Final = (
    Route(
        "POST",
        "/v1/tokens",
        create,
        ADMIN,
        "A token for a person or program, or to join workers; shown in this answer alone",
        body=TokenBody,
        reply=TokenReply,
        status=201,
    ),
    Route("GET", "/v1/tokens", list_tokens, ADMIN, "All tokens, newest first, without their secrets", reply=TokenPage),
    Route(
        "POST",
        "/v1/tokens/{ref}:revoke",
        revoke,
        ADMIN,
        "Make a token useless, by its id or its name, and what it was rotated into; repeating changes nothing",
        reply=TokenPage,
        query=(Query("all", "1: all tokens of this name", "flag"),),
    ),
    Route(
        "POST",
        "/v1/tokens:rotate",
        rotate,
        READ,
        "Replace the caller's own token; the old one is good for 10 more minutes",
        reply=TokenReply,
        status=201,
    ),
    Route(
        "GET",
        "/v1/audit",
        audit,
        ADMIN,
        "Who did what, oldest first, hash-chained",
        reply=AuditPage,
        query=(
            Query("after", "only entries after this number"),
            Query("limit", "entries on the page, 1 to 1000", least=1, most=1000),
        ),
    ),
)
