/* A library that answers as NVIDIA's libnvidia-ml.so.1, as far as GPUlayer asks it; structures as in NVIDIA's nvml.h.
 *
 * It reads the file named by FAKE_NVML at nvmlInit, "name value" a line:
 *   init 9                      nvmlInit fails with this number
 *   count 2                     as many cards
 *   0.uuid GPU-…                of card 0;  0.2.uuid MIG-… of its slice 2
 *   0.memory 80000 79000        MiB, total and free
 *   0.compute 4711:100 12       processes: pid:MiB, or pid alone where the memory is not told
 *   0.error.memory 3            this figure of this card can't be read: the number of the error
 *   0.error.memory hang         or it is never answered; "crash": the process dies of it
 * WITHOUT_… leaves out what old drivers have not.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { int card, slice; } Handle; /* slice -1: the card itself */
typedef Handle *Device;
enum { MAX_CARDS = 32, MAX_SLICES = 8, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_FUNCTION = 13 };

static Handle handles[MAX_CARDS][MAX_SLICES + 1];
static char told[65536];

static const char *value_of(const char *name)
{
    static char value[4096];
    size_t length = strlen(name);
    for (const char *line = told; *line;) {
        const char *end = strchr(line, '\n');
        if (!end) end = line + strlen(line);
        if (!strncmp(line, name, length) && line[length] == ' ') {
            size_t size = (size_t)(end - line) - length - 1;
            if (size >= sizeof value) size = sizeof value - 1;
            memcpy(value, line + length + 1, size);
            value[size] = 0;
            return value;
        }
        line = *end ? end + 1 : end;
    }
    return NULL;
}

static const char *of(Device device, const char *name)
{
    char whole[128];
    if (device->slice < 0) snprintf(whole, sizeof whole, "%d.%s", device->card, name);
    else snprintf(whole, sizeof whole, "%d.%d.%s", device->card, device->slice, name);
    return value_of(whole);
}

static int error_of(Device device, const char *name)
{
    char whole[96];
    snprintf(whole, sizeof whole, "error.%s", name);
    const char *value = of(device, whole);
    if (!value) return 0;
    if (!strcmp(value, "crash")) abort();
    if (!strcmp(value, "hang")) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    return atoi(value);
}

static int number(Device device, const char *name, unsigned *into)
{
    int error = error_of(device, name);
    const char *value = of(device, name);
    if (error) return error;
    if (!value) return NOT_SUPPORTED;
    *into = (unsigned)strtoul(value, NULL, 10);
    return 0;
}

static int text(Device device, const char *name, char *into, unsigned size)
{
    int error = error_of(device, name);
    const char *value = of(device, name);
    if (error) return error;
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) >= size) return TOO_SMALL;
    strcpy(into, value);
    return 0;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t size = file ? fread(told, 1, sizeof told - 1, file) : 0;
    told[size] = 0;
    if (file) fclose(file);
    for (int card = 0; card < MAX_CARDS; card++)
        for (int slice = -1; slice < MAX_SLICES; slice++) handles[card][slice + 1] = (Handle){card, slice};
    const char *value = value_of("init");
    if (value && !strcmp(value, "hang")) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    return value ? atoi(value) : 0;
}

int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int error)
{
    switch (error) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *into, unsigned size)
{
    const char *value = value_of("driver");
    snprintf(into, size, "%s", value ? value : "550.90.07");
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    const char *value = value_of("cuda");
    *version = value ? atoi(value) : 12040;
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    const char *value = value_of("count");
    *count = value ? (unsigned)atoi(value) : 0;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    if (index >= MAX_CARDS) return 2;
    *device = &handles[index][0];
    return error_of(*device, "handle");
}

int nvmlDeviceGetUUID(Device device, char *into, unsigned size) { return text(device, "uuid", into, size); }
int nvmlDeviceGetName(Device device, char *into, unsigned size) { return text(device, "name", into, size); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device device, Pci *pci)
{
    memset(pci, 0, sizeof *pci);
    return text(device, "pci", pci->address, sizeof pci->address);
}

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    int error = error_of(device, "memory");
    const char *value = of(device, "memory");
    unsigned long long total = 0, available = 0;
    if (error) return error;
    if (!value || sscanf(value, "%llu %llu", &total, &available) != 2) return NOT_SUPPORTED;
    memory->total = total << 20;
    memory->free = available << 20;
    memory->used = memory->total - memory->free;
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    int error = error_of(device, "capability");
    const char *value = of(device, "capability");
    if (error) return error;
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeMode(Device device, unsigned *mode) { return number(device, "compute_mode", mode); }
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *degrees)
{
    (void)sensor;
    return number(device, "temperature", degrees);
}

int nvmlDeviceGetEccMode(Device device, unsigned *now, unsigned *then)
{
    int error = number(device, "ecc", now);
    *then = *now;
    return error;
}

typedef struct { unsigned gpu, memory; } Use;
int nvmlDeviceGetUtilizationRates(Device device, Use *use)
{
    use->memory = 0;
    return number(device, "use", &use->gpu);
}

int nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned *pending)
{
    return number(device, "retiring", pending);
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
static int processes(Device device, const char *name, unsigned *count, Process *into)
{
    int error = error_of(device, name);
    const char *value = of(device, name);
    unsigned room = *count, found = 0;
    char copy[4096];
    if (error) return error;
    snprintf(copy, sizeof copy, "%s", value ? value : "");
    for (char *rest, *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest), found++) {
        if (!into || found >= room) continue;
        char *mib = strchr(word, ':');
        into[found] = (Process){(unsigned)atoi(word), mib ? strtoull(mib + 1, NULL, 10) << 20 : -1ULL, -1U, -1U};
    }
    *count = found;
    return found > room || (found && !into) ? TOO_SMALL : 0;
}

#ifndef WITHOUT_V3
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *into)
{
    return processes(device, "compute", count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, Process *into)
{
    return processes(device, "graphics", count, into);
}
#endif
int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, Process *into)
{
    return processes(device, "compute", count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(Device device, unsigned *count, Process *into)
{
    return processes(device, "graphics", count, into);
}

#ifndef WITHOUT_RECOVERY
typedef struct {
    unsigned field, scope;
    long long when, latency;
    int type, error;
    union { double real; int integer; unsigned natural; unsigned long long wide; } value;
} Field;
int nvmlDeviceGetFieldValues(Device device, int count, Field *fields)
{
    for (int place = 0; place < count; place++) {
        unsigned value = 0;
        fields[place].error = fields[place].field == 230 ? number(device, "recovery", &value) : NOT_SUPPORTED;
        fields[place].value.natural = value;
    }
    return 0;
}

int nvmlDeviceGetRemappedRows(Device device, unsigned *right, unsigned *wrong, unsigned *pending, unsigned *failed)
{
    int error = error_of(device, "remapped");
    const char *value = of(device, "remapped");
    if (error) return error;
    return value && sscanf(value, "%u %u %u %u", right, wrong, pending, failed) == 4 ? 0 : NOT_SUPPORTED;
}

typedef struct { unsigned version; unsigned long long counts[11]; unsigned is_exceeded; } Sram;
int nvmlDeviceGetSramEccErrorStatus(Device device, Sram *status) { return number(device, "sram", &status->is_exceeded); }

typedef struct { unsigned version, value; } Addressing;
int nvmlDeviceGetAddressingMode(Device device, Addressing *mode) { return number(device, "addressing", &mode->value); }
#endif

#ifndef WITHOUT_MIG
int nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *then)
{
    int error = number(device, "mig", now);
    *then = *now;
    return error;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count)
{
    (void)device;
    *count = MAX_SLICES;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *slice)
{
    if (index >= MAX_SLICES || !of(&handles[device->card][index + 1], "uuid")) return NOT_FOUND;
    *slice = &handles[device->card][index + 1];
    return error_of(*slice, "handle");
}

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *id) { return number(device, "gi", id); }
int nvmlDeviceGetComputeInstanceId(Device device, unsigned *id) { return number(device, "ci", id); }
#endif
