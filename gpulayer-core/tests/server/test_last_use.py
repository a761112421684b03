"""When a token was last used: to the minute, durable now and then, and never at the cost of another change."""

import asyncio

import pytest

from gpulayer.clock import ManualClock
from gpulayer.errors import BadRequest, StorageUnavailable
from gpulayer.server.auth import CLIENT_LIFE_S
from gpulayer.server.lastuse import keep_saving, save_uses
from gpulayer.server.store import reads
from gpulayer.server.tokens import Role, TokenKind, parse_token


def _use(plane, token: str) -> None:
    answer = plane.bare.get(f"{plane.url}/v1/jobs", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200


def _stored(plane, token: str):
    async def read():
        return {row.id: row for row in await plane.plane.query(reads.read_tokens)}[parse_token(token)[1]]

    return plane.call(read)


def test_the_last_use_is_kept_in_memory_to_the_minute_and_written_at_the_end(make_plane) -> None:
    clock = ManualClock()
    plane = make_plane(clock=clock).start()
    token, unused = plane.client_token("alice", Role.READER), plane.client_token("bob", Role.READER)
    for _ in range(3):
        clock.advance(1_000)
        _use(plane, token)
    auth = plane.plane.auth
    minute_ms = clock.wall_ms() // 60_000 * 60_000
    assert auth.token(parse_token(token)[1]).used_wall_ms == minute_ms
    assert _stored(plane, token).used_wall_ms is None
    plane.restart()
    assert _stored(plane, token).used_wall_ms == minute_ms
    assert _stored(plane, unused).used_wall_ms is None
    assert plane.plane.auth.used_tokens() == []


def test_uses_are_written_in_between_and_only_what_is_new(make_plane) -> None:
    clock = ManualClock()
    plane = make_plane(clock=clock).start()
    token = plane.client_token("alice", Role.READER)
    _use(plane, token)
    plane.call(lambda: save_uses(plane.plane))
    first = _stored(plane, token).used_wall_ms
    assert first is not None
    assert plane.plane.auth.used_tokens() == []
    _use(plane, token)
    assert plane.plane.auth.used_tokens() == []
    clock.advance(120_000)
    _use(plane, token)

    async def start_saving() -> None:
        saving = asyncio.create_task(keep_saving(plane.plane, every_s=0.01))
        async with asyncio.timeout(10):
            while plane.plane.auth.used_tokens():
                await asyncio.sleep(0.01)
        saving.cancel()

    plane.call(start_saving)
    assert _stored(plane, token).used_wall_ms == first + 120_000


def test_a_use_that_can_not_be_written_is_written_later(make_plane) -> None:
    broken = []

    class Breakable:
        def __init__(self, store) -> None:
            self.store = store

        def commit(self, batch) -> None:
            self.probe()
            self.store.commit(batch)

        def probe(self) -> None:
            if broken:
                raise StorageUnavailable("the disk is full")

        def load_live(self):
            return self.store.load_live()

    plane = make_plane()
    plane.wrap_store = Breakable
    plane.start()
    token = plane.client_token("alice", Role.READER)
    _use(plane, token)
    broken.append(True)
    plane.call(lambda: save_uses(plane.plane))
    assert [row.name for row in plane.plane.auth.used_tokens()] == ["alice"]
    broken.clear()
    plane.until(lambda: plane.http.get("/readyz").status_code == 200)
    plane.call(lambda: save_uses(plane.plane))
    assert _stored(plane, token).used_wall_ms is not None


def test_a_use_seen_while_a_token_is_changed_is_not_forgotten(plane) -> None:
    token = plane.client_token("alice", Role.READER)
    auth = plane.plane.auth
    before = auth.token(parse_token(token)[1])
    _use(plane, token)
    auth.keep_token(before)
    assert auth.token(before.id).used_wall_ms is not None
    assert "alice" in [row.name for row in auth.used_tokens()]


def test_a_client_token_lives_as_long_as_its_role_says(plane) -> None:
    auth = plane.plane.auth
    days = {Role.ADMIN: 30, Role.SUBMITTER: 90, Role.READER: 90}
    for role in Role:
        token, row = auth.new_client_token(name="alice", role=role)
        assert parse_token(token)[0] is TokenKind.CLIENT
        assert (row.owner, row.role) == ("alice", role)
        assert row.expires_wall_ms - row.created_wall_ms == days[role] * 86_400_000 == CLIENT_LIFE_S[role] * 1000
    _, row = auth.new_client_token(name="alice", role=Role.ADMIN, life_s=60)
    assert row.expires_wall_ms - row.created_wall_ms == 60_000


@pytest.mark.parametrize("name", ["local", "Local", " alice", "ali\nce", "a\x1b[31m"])
def test_names_that_would_mislead_are_refused(plane, name) -> None:
    with pytest.raises(BadRequest, match="name: "):
        plane.plane.auth.new_client_token(name=name, role=Role.READER)
