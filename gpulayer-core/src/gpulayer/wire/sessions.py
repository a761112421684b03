"""What a worker signs for a session, in one place for both sides."""

__all__ = ["session_text"]


def session_text(worker: str, counter: int, *, boot: int | None = None, instance: str | None = None) -> str:
    """See ``wire.workers.SessionBody``. An agent of before names no start of its own: both are None then."""
    start = "" if boot is None or instance is None else f":{boot}:{instance}"
    return f"gpulayer-session:{worker}:{counter}{start}"
