"""Which GPUs the worker itself may see, by the variables that ROCm reads. Pure.

https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html: ``ROCR_VISIBLE_DEVICES`` comes first, with indices
and ids; what it leaves is counted anew for ``HIP_VISIBLE_DEVICES``, for which HIP takes ``CUDA_VISIBLE_DEVICES`` where
it is not set or empty. A word that names none, or one again, ends a list.
"""

from collections.abc import Mapping, Sequence

__all__ = ["visible_positions"]


def visible_positions(uuids: Sequence[str], environment: Mapping[str, str]) -> tuple[int, ...]:
    """Of these, in ROCm's order, those that may be seen, by position."""
    seen = list(range(len(uuids)))
    rocr = environment.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:  # an empty one hides all
        seen = _chosen(rocr, seen, uuids)
    hip = environment.get("HIP_VISIBLE_DEVICES", "")
    if not hip:
        hip = environment.get("CUDA_VISIBLE_DEVICES", "")
        if any(_is_of_nvidia(word.strip(), uuids) for word in hip.split(",")):
            hip = ""
    if hip:
        seen = _chosen(hip, seen, uuids)
    return tuple(sorted(seen))


def _chosen(text: str, seen: Sequence[int], uuids: Sequence[str]) -> list[int]:
    chosen: list[int] = []
    for word in (word.strip() for word in text.split(",")):
        if word.isdecimal():
            named = [seen[int(word)]] if int(word) < len(seen) else []
        elif word.upper().startswith("GPU-") and len(word) > len("GPU-"):
            named = [position for position in seen if uuids[position].lower().startswith(word.lower())]
        else:
            named = []
        if len(named) != 1 or named[0] in chosen:
            break
        chosen.extend(named)
    return chosen


def _is_of_nvidia(word: str, uuids: Sequence[str]) -> bool:
    """An id, and none of ours: it says nothing of AMD's devices."""
    is_id = word.upper().startswith(("GPU-", "MIG-"))
    return is_id and not any(uuid.lower().startswith(word.lower()) for uuid in uuids)
