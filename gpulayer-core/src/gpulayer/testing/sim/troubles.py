"""What goes wrong in a world, in sentences: its faults, and what is not well with it from the start."""

from collections.abc import Iterator
from typing import Final

from gpulayer.testing.sim.scenario import Fault, HostPlan, Noise, Scenario, Trouble
from gpulayer.testing.sim.words import lasting, listed, share

__all__ = ["ARMED", "DEATHS", "NEED_PLANE", "NEED_POWER", "fault_text", "noise_text", "standing"]

_EVEN: Final = 0.0005  # two clocks that differ by less are told as one


def fault_text(fault: Fault, host: str = "") -> str:
    """What goes wrong, in one sentence. host: the name of the one that it happens to, where that is not its first."""
    host = host or f"w{fault.host}"
    lasts = lasting(fault.lasts_ms)
    text = _FAULTS[fault.kind].format(host=host, lasts=lasts, times="once" if fault.amount == 1 else "several times")
    if fault.kind in (Trouble.WALL_JUMPS, Trouble.PLANE_WALL_JUMPS):
        text += f" by {lasting(abs(fault.amount))}, {'forwards' if fault.amount > 0 else 'backwards'}"
    if fault.kind is Trouble.PROBE_LIES:
        text += _LIES[fault.amount % len(_LIES)]
    return text


def noise_text(noise: Noise) -> str:
    """``loses 30 % of all messages and delivers 5 % of them twice``; empty for one that is calm."""
    parts = [f"loses {share(noise.loss)} of all messages"] if noise.loss else []
    parts += [f"delivers {share(noise.doubling)} of them twice"] if noise.doubling else []
    parts += [f"delays {share(noise.stall)} of them for up to 30 s"] if noise.stall else []
    text = listed(parts)
    return text if noise.loss else text.replace(" of them", " of all messages", 1)


def standing(scenario: Scenario) -> Iterator[str]:
    """What is not well from the start, and stays so until peace: the network, the disk, clocks, machines."""
    if text := noise_text(scenario.noise):
        yield f"the network {text}"
    if scenario.noise.commit_failure:
        yield f"{share(scenario.noise.commit_failure)} of the commits of the control plane fail"
    if abs(scenario.rate - 1) > _EVEN:
        yield f"the clock of the control plane runs {_pace(scenario.rate)}"
    there: dict[str, list[str]] = {}
    for host in scenario.hosts:
        for text in _of_host(host, has_sources=any(job.has_source for job in scenario.jobs)):
            there.setdefault(text, []).append(f"w{host.number}")
    for text, names in there.items():
        yield text.format(listed(names))


def _of_host(host: HostPlan, *, has_sources: bool) -> Iterator[str]:
    if abs(host.rate - 1) > _EVEN:
        yield f"the clock of {{}} runs {_pace(host.rate)}"
    if host.wall_ms:
        yield f"the wall clock of {{}} is {lasting(abs(host.wall_ms))} {'ahead' if host.wall_ms > 0 else 'behind'}"
    if host.staging_failure and has_sources:
        yield f"{share(host.staging_failure)} of the sources for jobs don't come to {{}} whole"
    if host.launch_failure:
        yield f"{share(host.launch_failure)} of the starts on {{}} are put off, and as many take long"


def _pace(rate: float) -> str:
    return f"{share(abs(rate - 1))} too {'fast' if rate > 1 else 'slowly'}"


_LIES: Final = (
    ": it misses a GPU",
    ": it sees other cores",
    ": it misses a GPU, and sees it again, several times",
    ": it sees no GPUs",
)
_FAULTS: Final[dict[Trouble, str]] = {
    Trouble.PLANE_DIES: "the control plane dies, and is back after {lasts}",
    Trouble.PLANE_DIES_BEFORE_STEP: "the control plane is to die before its next step, for {lasts}",
    Trouble.PLANE_DIES_STEPPED: "the control plane is to die before it stores its next step, for {lasts}",
    Trouble.PLANE_DIES_IN_COMMIT: "the control plane is to die in its next commit, for {lasts}",
    Trouble.PLANE_DIES_COMMITTED: "the control plane is to die after its next commit, unanswered, for {lasts}",
    Trouble.PLANE_DIES_ANSWERED: "the control plane is to die after its next answer, for {lasts}",
    Trouble.PLANE_LOSES_POWER: "the machine of the control plane loses power for {lasts}",
    Trouble.PLANE_STOPS: "the control plane stands still for {lasts}",
    Trouble.PLANE_DISK_FULL: "the disk of the control plane is full for {lasts}",
    Trouble.PLANE_FSYNC_FAILS: "the disk of the control plane is to fail its next sync",
    Trouble.PLANE_WALL_JUMPS: "the wall clock of the control plane jumps",
    Trouble.PLANE_RESTORED: "the control plane ends, and is restored from a backup after {lasts}",
    Trouble.PLANE_SCORERS_CHANGE: "the control plane has other scorers for {lasts}",
    Trouble.AGENT_DIES: "the agent of {host} dies, and is back after {lasts}",
    Trouble.AGENT_STOPS: "the agent of {host} stands still for {lasts}",
    Trouble.AGENT_LEAVES: "the agent of {host} is asked to end, and started again {lasts} after that",
    Trouble.SPAWNER_DIES: "the spawner of {host} dies",
    Trouble.SPAWNER_STOPS: "the spawner of {host} stands still for {lasts}",
    Trouble.AGENT_AND_SPAWNER_STOP: "agent and spawner of {host} stand still for {lasts}",
    Trouble.WATCHDOG_AND_SPAWNER_DIE: "watchdog and spawner of {host} die at once",
    Trouble.ALL_STOP: "everything on {host} stands still for {lasts}, programs too",
    Trouble.SLEEPS: "{host} sleeps for {lasts}",
    Trouble.LOSES_POWER: "{host} loses power for {lasts}",
    Trouble.LOSES_DISK: "{host} loses power for {lasts}, and what its disk held of jobs for ever",
    Trouble.DISK_FULL: "the disk of {host} is full for {lasts}",
    Trouble.WALL_JUMPS: "the wall clock of {host} jumps",
    Trouble.PROBE_LIES: "the probe of {host} goes wrong for {lasts}",
    Trouble.SPOT_LOST: "{host} is taken away for ever; another machine comes",
    Trouble.COPIED: "a copy of the folder of {host} works on another machine; {host} itself is back {lasts} after that",
    Trouble.CUT: "the network of {host} is cut (both ways) for {lasts}",
    Trouble.CUT_OUT: "the network of {host} is cut for {lasts}: what it sends is lost",
    Trouble.CUT_IN: "the network of {host} is cut for {lasts}: what is sent to it is lost",
    Trouble.HALF_OPEN: "the connections of {host} are dead, and it does not know",
    Trouble.DRAINED: "somebody drains {host} for {lasts}",
    Trouble.REMOVED: "somebody removes {host}; it is to join again once it has heard of that",
    Trouble.STRANGER: "somebody who can't be seen has the devices of {host} for {lasts}",
    Trouble.PROVIDER_ERRS: "a provider that is asked for a machine answers with an error {times}, and makes it",
    Trouble.PROVIDER_HANGS: "a provider that is asked for a machine does not answer {times}, and makes it",
}
# When it happens; ``_FAULTS`` says that it is going to.
DEATHS: Final[dict[str, str]] = {
    Trouble.PLANE_DIES_BEFORE_STEP: "the control plane dies before a step, and is back after {lasts}",
    Trouble.PLANE_DIES_STEPPED: "the control plane dies before it stores a step, and is back after {lasts}",
    Trouble.PLANE_DIES_IN_COMMIT: "the control plane dies in a commit, and is back after {lasts}",
    Trouble.PLANE_DIES_COMMITTED: "the control plane dies after a commit that it has not answered yet, and is back"
    " after {lasts}",
    Trouble.PLANE_DIES_ANSWERED: "the control plane dies after an answer, and is back after {lasts}",
    Trouble.PLANE_FSYNC_FAILS: "the disk of the control plane has failed a sync: it ends, and is back after {lasts}",
}
ARMED: Final = frozenset(DEATHS)
# Nothing comes of these where there is no power, or no control plane at work.
NEED_POWER: Final = frozenset(
    {
        Trouble.AGENT_DIES,
        Trouble.AGENT_STOPS,
        Trouble.AGENT_LEAVES,
        Trouble.SPAWNER_DIES,
        Trouble.SPAWNER_STOPS,
        Trouble.AGENT_AND_SPAWNER_STOP,
        Trouble.WATCHDOG_AND_SPAWNER_DIE,
        Trouble.ALL_STOP,
        Trouble.SLEEPS,
        Trouble.LOSES_POWER,
        Trouble.LOSES_DISK,
    }
)
NEED_PLANE: Final = frozenset(
    {Trouble.PLANE_DIES, Trouble.PLANE_LOSES_POWER, Trouble.PLANE_STOPS, Trouble.PLANE_RESTORED}
)
