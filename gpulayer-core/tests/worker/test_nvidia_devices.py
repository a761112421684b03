"""NVIDIA's cards in a real worker: what it finds it tells, and jobs see those that they were given, by UUID."""

import os

import pytest

from tests.nvidia import built_nvml, nvml_environment

SHOWN = 'echo "$CUDA_VISIBLE_DEVICES ${CUDA_DEVICE_ORDER-unset}"'


def cards(*models):
    lines = {"count": len(models)}
    for number, model in enumerate(models):
        lines |= {f"{number}.uuid": f"GPU-{number}", f"{number}.name": model, f"{number}.memory": "24564 24500"}
        lines |= {f"{number}.pci": f"00000000:0{number}:00.0", f"{number}.compute": ""}
    return lines


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def environment_of(tmp_path, library):
    """``environment_of(lines)``: a worker's, on a machine with these cards."""

    def make(lines, **more):
        there = nvml_environment(library, tmp_path / "told", lines)
        return there | {"PATH": os.environ["PATH"], "HOME": "/nowhere"} | more

    return make


def devices_told(plane):
    return next(
        [(device["uuid"], device["index"], device["model"], device["state"]) for device in report["facts"]["devices"]]
        for report in reversed(plane.reports)
        if report.get("facts")
    )


def printed(plane, epoch):
    return bytes(plane.logs[epoch]).decode().strip()


def test_jobs_get_what_the_workers_own_variable_leaves_it_and_a_job_without_a_device_sees_none(
    scene, environment_of, tmp_path
):
    """E3."""

    async def main(plane, worker):
        environment = environment_of(cards(*["NVIDIA L40S"] * 4), CUDA_VISIBLE_DEVICES="2,3")
        worker.start(environment=environment, lock_folders=[str(tmp_path / "locks")])
        await plane.until(lambda: any(report.get("facts") for report in plane.reports))
        assert devices_told(plane) == [
            ("GPU-2", 2, "NVIDIA L40S", "usable"),
            ("GPU-3", 3, "NVIDIA L40S", "usable"),
        ]
        plane.assign(1, "sh", "-c", SHOWN, devices=["GPU-2"])
        plane.assign(2, "sh", "-c", SHOWN, devices=["GPU-3"])
        plane.assign(3, "sh", "-c", SHOWN)
        for epoch in (1, 2, 3):
            assert (await plane.end_of(epoch))["outcome"]["exit_code"] == 0
        assert [printed(plane, epoch) for epoch in (1, 2, 3)] == ["GPU-2 unset", "GPU-3 unset", "unset"]
        await worker.stop()

    scene(main)


def test_the_card_that_was_meant_is_named_by_its_uuid_and_the_users_own_order_stays(scene, environment_of, tmp_path):
    """E1."""

    async def main(plane, worker):
        environment = environment_of(cards("NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 4090"))
        worker.start(environment=environment, lock_folders=[str(tmp_path / "locks")])
        await plane.until(lambda: any(report.get("facts") for report in plane.reports))
        [fast] = [uuid for uuid, _, model, _ in devices_told(plane) if "4090" in model]
        plane.assign(1, "sh", "-c", SHOWN, devices=[fast])
        plane.assign(2, "sh", "-c", SHOWN, devices=[fast], env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
        for epoch in (1, 2):
            assert (await plane.end_of(epoch))["outcome"]["exit_code"] == 0
        assert printed(plane, 1) == "GPU-1 unset"
        assert printed(plane, 2) == "GPU-1 FASTEST_FIRST"
        await worker.stop()

    scene(main)


def test_a_driver_that_hangs_costs_no_cpu_job(scene, environment_of, tmp_path):
    """P4: the worker joins, says why it has no device, and works."""

    async def main(plane, worker):
        environment = environment_of({"init": "hang"})
        worker.start(environment=environment, lock_folders=[str(tmp_path / "locks")])
        plane.assign(1, "echo", "done")
        await plane.until(lambda: any(report.get("facts") for report in plane.reports))
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        assert devices_told(plane) == []
        facts = next(report["facts"] for report in reversed(plane.reports) if report.get("facts"))
        assert "the driver does not answer" in str(facts["missing"])
        await worker.stop()

    scene(main)
