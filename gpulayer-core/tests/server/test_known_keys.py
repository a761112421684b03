from gpulayer.server.known_keys import KnownKeys


def test_before_the_store_was_read_every_key_may_be_known() -> None:
    assert KnownKeys().may_hold("ann", "key")


def test_what_was_added_is_known_and_hardly_anything_else() -> None:
    stored, keys = KnownKeys(), KnownKeys()
    for number in range(10_000):
        (stored if number % 2 else keys).add("ann", f"key-{number}")
    keys.complete(stored)
    assert all(keys.may_hold("ann", f"key-{number}") for number in range(10_000))
    assert sum(keys.may_hold("bob", f"key-{number}") for number in range(10_000)) < 10


def test_a_key_with_a_lone_surrogate_is_a_key_as_any_other() -> None:
    keys = KnownKeys()
    keys.complete(KnownKeys())
    assert not keys.may_hold("ann", "\udc80")
    keys.add("ann", "\udc80")
    assert keys.may_hold("ann", "\udc80")
