"""``gpulayer explain``: a dry run of placement."""

from gpulayer.cli import needs
from gpulayer.cli.console import print_json, print_line
from gpulayer.cli.exits import Exit
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client
from gpulayer.cli.verdicts import explanation_lines

app = command_app()


@app.command()
def explain(
    *,
    target: TargetOption = "",
    accelerator: needs.AcceleratorFlag = "",
    devices: needs.DevicesFlag = None,
    device_model: needs.DeviceModelFlag = "",
    device_memory: needs.DeviceMemoryFlag = "",
    compute_capability: needs.CapabilityFlag = "",
    framework: needs.FrameworkFlag = None,
    cpus: needs.CpusFlag = None,
    memory: needs.MemoryFlag = "",
    disk: needs.DiskFlag = "",
    label: needs.LabelFlag = None,
    worker: needs.WorkerFlag = "",
    zone: needs.ZoneFlag = "",
    region: needs.RegionFlag = "",
    network_group: needs.GroupFlag = "",
    resource: needs.ResourceFlag = None,
    launcher: needs.LauncherFlag = "",
    environment: needs.EnvironmentFlag = "",
    input_: needs.InputFlag = None,
    json: JsonFlag = False,
) -> int:
    """Say which worker would get a request now, and what would make the others fit. Exits with 3 where none can."""
    options = needs.request_options(
        accelerator=accelerator,
        devices=devices,
        device_model=device_model,
        device_memory=device_memory,
        compute_capability=compute_capability,
        framework=framework,
        cpus=cpus,
        memory=memory,
        disk=disk,
        label=label,
        worker=worker,
        zone=zone,
        region=region,
        network_group=network_group,
        resource=resource,
        launcher=launcher,
        environment=environment,
        input_=input_,
    )
    with open_client(target) as client:
        reply = client.explain(**options)
    if json:
        print_json(reply)
    else:
        for line in explanation_lines(reply["request"], reply["choice"], reply["verdicts"], reply.get("waits")):
            print_line(line)
    fits = any(verdict["verdict"] != "ineligible" for verdict in reply["verdicts"])
    return Exit.OK if fits or not reply["verdicts"] else Exit.NO_WORKER
