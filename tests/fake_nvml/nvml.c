/* A libnvidia-ml.so.1 for tests: what NVIDIA's library answers, as the test says it.
 *
 * Names, structures and return values are those of NVIDIA's nvml.h. What is answered is set by
 * assignments between spaces, in the environment variable FAKE_NVML or by calling fake_nvml():
 *
 *     gpus=2 major.1=8 slices.0=2 users.0:1=41,42 work.1=41:90 nvmlDeviceGetPowerUsage.1=3
 *
 * A place after the name is a GPU (.0) or a slice of one (.0:1); without one it is every GPU. A
 * function's name is given the value that it returns. `reset` undoes all that was said before.
 *
 * Built with -DDRIVER=470 it lacks what a driver of that version lacks.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef DRIVER
#define DRIVER 580
#endif
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
};
enum { GPUS = 4, SLICES = 4, MOST = 8, METRICS = 32, REFUSALS = 16, FIRST_INSTANCE = 3 };
#define NO_INSTANCE 0xFFFFFFFFu
#define NONSENSE 12345.0

typedef struct {
    unsigned pid, percent;
    unsigned long long at_us;
} Work;

typedef struct Gpu Gpu;
typedef struct {
    Gpu *gpu;
    int slice; /* -1: the whole GPU */
    double total_mb, used_mb, reserved_mb, busy_percent;
    unsigned users[MOST];
    int user_count;
    Work work[MOST];
    int work_count, stale; /* stale: old work is told along with new */
    double metric[METRICS], sum[METRICS], summed_to; /* by GPM's numbers; sum: over the seconds */
    int metric_return[METRICS];
} Part;

struct Gpu {
    Part whole, slices[SLICES];
    int index, slice_count, major, minor, celsius, sm_clock, memory_clock;
    double watts, joules;
    unsigned long long reasons;
    long reads_left; /* -1: it is never lost */
};

typedef struct {
    char function[64];
    int gpu, slice, code; /* gpu -1: whatever it is asked of */
} Refusal;

static Gpu gpus[GPUS];
static int gpu_count, begun, samples_held;
static Refusal refusals[REFUSALS];
static int refusal_count;
static double set_now_s; /* -1: the machine's own clock */

/* ------------------------------------------------------------------------------- being told */
static double now_s(void)
{
    struct timespec t;
    if (set_now_s >= 0)
        return set_now_s;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void sum_up(Part *part)
{
    double now = now_s();
    for (int id = 0; id < METRICS; id++)
        part->sum[id] += part->metric[id] * (now - part->summed_to);
    part->summed_to = now;
}

static void begin_part(Part *part, Gpu *gpu, int slice)
{
    memset(part, 0, sizeof *part);
    part->gpu = gpu;
    part->slice = slice;
    part->total_mb = slice < 0 ? 150000 : 18000;
    part->summed_to = now_s();
}

static void reset(void)
{
    gpu_count = 1;
    begun = samples_held = refusal_count = 0;
    set_now_s = -1;
    for (int g = 0; g < GPUS; g++) {
        Gpu *gpu = &gpus[g];
        memset(gpu, 0, sizeof *gpu);
        gpu->index = g;
        gpu->major = 9;
        gpu->reads_left = -1;
        begin_part(&gpu->whole, gpu, -1);
        for (int s = 0; s < SLICES; s++)
            begin_part(&gpu->slices[s], gpu, s);
    }
}

static void set_users(Part *part, char *list)
{
    char *rest;
    part->user_count = 0;
    for (char *pid = strtok_r(list, ",", &rest); pid && part->user_count < MOST;
         pid = strtok_r(NULL, ",", &rest))
        part->users[part->user_count++] = strtoul(pid, NULL, 10);
}

static void set_work(Part *part, char *list)
{
    char *rest;
    part->work_count = 0;
    for (char *each = strtok_r(list, ",", &rest); each && part->work_count < MOST;
         each = strtok_r(NULL, ",", &rest)) {
        Work *work = &part->work[part->work_count++];
        sscanf(each, "%u:%u", &work->pid, &work->percent);
        work->at_us = (unsigned long long)(now_s() * 1e6);
    }
}

/* Whether there is something of that name. */
static int set(Gpu *gpu, Part *part, const char *name, char *value)
{
    double number = atof(value);
    unsigned id;
    if (sscanf(name, "metric%u", &id) == 1 && id < METRICS) {
        sum_up(part);
        part->metric[id] = number;
    } else if (sscanf(name, "unmeasured%u", &id) == 1 && id < METRICS)
        part->metric_return[id] = (int)number;
    else if (!strcmp(name, "total"))
        part->total_mb = number;
    else if (!strcmp(name, "used"))
        part->used_mb = number;
    else if (!strcmp(name, "reserved"))
        part->reserved_mb = number;
    else if (!strcmp(name, "busy"))
        part->busy_percent = number;
    else if (!strcmp(name, "users"))
        set_users(part, value);
    else if (!strcmp(name, "work"))
        set_work(part, value);
    else if (!strcmp(name, "stale"))
        part->stale = (int)number;
    else if (!strcmp(name, "slices"))
        gpu->slice_count = (int)number;
    else if (!strcmp(name, "major"))
        gpu->major = (int)number;
    else if (!strcmp(name, "minor"))
        gpu->minor = (int)number;
    else if (!strcmp(name, "power"))
        gpu->watts = number;
    else if (!strcmp(name, "energy"))
        gpu->joules = number;
    else if (!strcmp(name, "celsius"))
        gpu->celsius = (int)number;
    else if (!strcmp(name, "sm_clock"))
        gpu->sm_clock = (int)number;
    else if (!strcmp(name, "memory_clock"))
        gpu->memory_clock = (int)number;
    else if (!strcmp(name, "reasons"))
        gpu->reasons = strtoull(value, NULL, 0);
    else if (!strcmp(name, "lost"))
        gpu->reads_left = (long)number;
    else
        return 0;
    return 1;
}

static int refuse(const char *function, int gpu, int slice, int code)
{
    if (refusal_count == REFUSALS)
        return 0;
    Refusal *refusal = &refusals[refusal_count++];
    snprintf(refusal->function, sizeof refusal->function, "%s", function);
    refusal->gpu = gpu;
    refusal->slice = slice;
    refusal->code = code;
    return 1;
}

static int assign(char *name)
{
    int gpu = -1, slice = -1, known = 1;
    if (!strcmp(name, "reset")) {
        reset();
        return 1;
    }
    char *value = strchr(name, '=');
    if (!value)
        return 0;
    *value++ = 0;
    char *place = strchr(name, '.');
    if (place) {
        *place++ = 0;
        sscanf(place, "%d:%d", &gpu, &slice);
    }
    if (gpu >= GPUS || slice >= SLICES)
        return 0;
    if (!strncmp(name, "nvml", 4))
        return refuse(name, gpu, slice, atoi(value));
    if (!strcmp(name, "gpus"))
        gpu_count = atoi(value);
    else if (!strcmp(name, "now"))
        set_now_s = atof(value);
    else
        for (int g = 0; g < GPUS; g++)
            if (gpu < 0 || gpu == g) {
                char copy[256];
                snprintf(copy, sizeof copy, "%s", value);
                Part *part = slice < 0 ? &gpus[g].whole : &gpus[g].slices[slice];
                known = set(&gpus[g], part, name, copy);
            }
    return known && gpu_count <= GPUS;
}

/* How many of the assignments were not understood. */
int fake_nvml(const char *assignments)
{
    char *rest, *text = strdup(assignments);
    int unknown = 0;
    for (char *each = strtok_r(text, " ", &rest); each; each = strtok_r(NULL, " ", &rest))
        unknown += !assign(each);
    free(text);
    return unknown;
}

/* How often NVML was begun and not ended, and how many GPM samples are held. */
int fake_nvml_begun(void)
{
    return begun;
}

int fake_nvml_samples(void)
{
    return samples_held;
}

__attribute__((constructor)) static void loaded(void)
{
    const char *assignments = getenv("FAKE_NVML");
    reset();
    if (assignments && fake_nvml(assignments)) {
        fprintf(stderr, "FAKE_NVML is not understood: %s\n", assignments);
        abort();
    }
}

/* -------------------------------------------------------------------------------- answering */
static int refused(const char *function, const Part *part)
{
    for (int i = refusal_count - 1; i >= 0; i--) {
        const Refusal *refusal = &refusals[i];
        int here = part && refusal->gpu == part->gpu->index && refusal->slice == part->slice;
        if (!strcmp(refusal->function, function) && (refusal->gpu < 0 || here))
            return refusal->code;
    }
    return begun ? SUCCESS : UNINITIALIZED;
}

static int read_of(const char *function, Part *part)
{
    int code = refused(function, part);
    if (code || !part)
        return code ? code : INVALID_ARGUMENT;
    if (part->gpu->reads_left == 0)
        return GPU_IS_LOST;
    if (part->gpu->reads_left > 0)
        part->gpu->reads_left--;
    return SUCCESS;
}

#define RETURN_IF(code)          \
    do {                         \
        int code_ = (code);      \
        if (code_)               \
            return code_;        \
    } while (0)
#define READ(part) RETURN_IF(read_of(__func__, part))
/* Of a whole GPU, sliced or not: a slice's handle is refused. */
#define READ_GPU(part)                                              \
    do {                                                            \
        READ(part);                                                 \
        RETURN_IF((part)->slice < 0 ? SUCCESS : INVALID_ARGUMENT);  \
    } while (0)

static int copy_text(const char *text, char *to, unsigned length)
{
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    begun++;
    int code = refused(__func__, NULL);
    if (code)
        begun--;
    return code;
}

int nvmlShutdown(void)
{
    RETURN_IF(refused(__func__, NULL));
    begun--;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    static char text[32];
    snprintf(text, sizeof text, "error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    RETURN_IF(refused(__func__, NULL));
    return copy_text(TEXT(DRIVER) ".65.06", version, length);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    RETURN_IF(refused(__func__, NULL));
    *version = DRIVER >= 580 ? 13000 : 11040;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    RETURN_IF(refused(__func__, NULL));
    *count = gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Part **device)
{
    RETURN_IF((int)index < gpu_count ? SUCCESS : INVALID_ARGUMENT);
    READ(&gpus[index].whole);
    *device = &gpus[index].whole;
    return SUCCESS;
}

int nvmlDeviceGetName(Part *device, char *name, unsigned length)
{
    char text[64];
    READ(device);
    const char *model = device->gpu->major >= 9 ? "H200" : device->gpu->major == 8 ? "A100" : "P40";
    snprintf(text, sizeof text, "NVIDIA %s%s", model, device->slice < 0 ? "" : " MIG 1g.18gb");
    return copy_text(text, name, length);
}

int nvmlDeviceGetUUID(Part *device, char *uuid, unsigned length)
{
    char text[64];
    READ(device);
    snprintf(text, sizeof text, "%s-00000000-0000-0000-000%d-%012d",
             device->slice < 0 ? "GPU" : "MIG", device->gpu->index, device->slice + 1);
    return copy_text(text, uuid, length);
}

int nvmlDeviceGetMinorNumber(Part *device, unsigned *number)
{
    READ_GPU(device);
    *number = device->gpu->index;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Part *device, int *major, int *minor)
{
    READ(device);
    *major = device->gpu->major;
    *minor = device->gpu->minor;
    return SUCCESS;
}

typedef struct {
    unsigned long long total, free, used; /* used: with what is reserved */
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used; /* used: without it */
} MemoryV2;

static unsigned long long bytes(double mb)
{
    return (unsigned long long)(mb * 1e6);
}

int nvmlDeviceGetMemoryInfo(Part *device, Memory *memory)
{
    READ(device);
    memory->total = bytes(device->total_mb);
    memory->used = bytes(device->used_mb + device->reserved_mb);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

#if DRIVER >= 510
int nvmlDeviceGetMemoryInfo_v2(Part *device, MemoryV2 *memory)
{
    READ(device);
    RETURN_IF(memory->version == 0x02000028 ? SUCCESS : INVALID_ARGUMENT);
    memory->total = bytes(device->total_mb);
    memory->reserved = bytes(device->reserved_mb);
    memory->used = bytes(device->used_mb);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
#endif

typedef struct {
    unsigned gpu, memory;
} Utilization;

int nvmlDeviceGetUtilizationRates(Part *device, Utilization *rates)
{
    READ(device);
    RETURN_IF(device->slice >= 0 || device->gpu->slice_count ? NOT_SUPPORTED : SUCCESS);
    rates->gpu = (unsigned)device->busy_percent;
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Part *device, unsigned *milliwatts)
{
    READ_GPU(device);
    *milliwatts = (unsigned)(device->gpu->watts * 1000);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Part *device, unsigned long long *millijoules)
{
    READ_GPU(device);
    RETURN_IF(device->gpu->major < 7 ? NOT_SUPPORTED : SUCCESS);
    *millijoules = (unsigned long long)(device->gpu->joules * 1000);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Part *device, unsigned type, unsigned *mhz)
{
    READ_GPU(device);
    RETURN_IF(type == 1 || type == 2 ? SUCCESS : INVALID_ARGUMENT);
    *mhz = type == 1 ? device->gpu->sm_clock : device->gpu->memory_clock;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Part *device, unsigned sensor, unsigned *celsius)
{
    READ_GPU(device);
    RETURN_IF(sensor == 0 ? SUCCESS : INVALID_ARGUMENT);
    *celsius = device->gpu->celsius;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Part *device, unsigned long long *reasons)
{
    READ_GPU(device);
    *reasons = device->gpu->reasons;
    return SUCCESS;
}

#if DRIVER >= 535
int nvmlDeviceGetCurrentClocksEventReasons(Part *device, unsigned long long *reasons)
{
    READ_GPU(device);
    *reasons = device->gpu->reasons;
    return SUCCESS;
}
#endif

/* -------------------------------------------------------------------------------- processes */
typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
} Process;

static unsigned instance_of(const Part *part)
{
    return part->slice < 0 ? NO_INSTANCE : (unsigned)(FIRST_INSTANCE + part->slice);
}

/* Those on a part; those on a sliced GPU are those on its slices. */
static unsigned list(const Part *part, Process *to)
{
    unsigned count = 0;
    if (part->slice < 0)
        for (int s = 0; s < part->gpu->slice_count; s++)
            count += list(&part->gpu->slices[s], to ? to + count : NULL);
    for (int i = 0; i < part->user_count; i++, count++)
        if (to)
            to[count] = (Process){
                .pid = part->users[i],
                .used_memory = 1 << 30,
                .gpu_instance = instance_of(part),
                .compute_instance = part->slice < 0 ? NO_INSTANCE : 0,
            };
    return count;
}

static int processes(const Part *part, unsigned *count, Process *to)
{
    unsigned found = list(part, NULL), room = *count;
    *count = found;
    RETURN_IF(found > room || (found && !to) ? INSUFFICIENT_SIZE : SUCCESS);
    list(part, to);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Part *device, unsigned *count, Process *to)
{
    READ(device);
    return processes(device, count, to);
}

#if DRIVER >= 510
int nvmlDeviceGetComputeRunningProcesses_v3(Part *device, unsigned *count, Process *to)
{
    READ(device);
    return processes(device, count, to);
}
#endif

typedef struct {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;
} ProcessSample;

int nvmlDeviceGetProcessUtilization(Part *device, ProcessSample *to, unsigned *count,
                                    unsigned long long since_us)
{
    unsigned found = 0;
    READ_GPU(device);
    RETURN_IF(device->gpu->slice_count ? NOT_SUPPORTED : SUCCESS);
    for (int i = 0; i < device->work_count; i++) {
        const Work *work = &device->work[i];
        if (work->at_us <= since_us && !device->stale)
            continue;
        if (to && found < *count)
            to[found] =
                (ProcessSample){.pid = work->pid, .at_us = work->at_us, .sm = work->percent};
        found++;
    }
    RETURN_IF(found ? SUCCESS : NOT_FOUND);
    int room = to && found <= *count;
    *count = found;
    return room ? SUCCESS : INSUFFICIENT_SIZE;
}

/* -------------------------------------------------------------------------------------- MIG */
int nvmlDeviceGetMigMode(Part *device, unsigned *current, unsigned *pending)
{
    READ_GPU(device);
    RETURN_IF(device->gpu->major >= 8 ? SUCCESS : NOT_SUPPORTED);
    *current = *pending = device->gpu->slice_count > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Part *device, unsigned *count)
{
    READ_GPU(device);
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Part *device, unsigned index, Part **slice)
{
    READ_GPU(device);
    RETURN_IF((int)index < device->gpu->slice_count ? SUCCESS : NOT_FOUND);
    *slice = &device->gpu->slices[index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Part *device, unsigned *id)
{
    READ(device);
    RETURN_IF(device->slice >= 0 ? SUCCESS : INVALID_ARGUMENT);
    *id = instance_of(device);
    return SUCCESS;
}

/* -------------------------------------------------------------------------------------- GPM */
#if DRIVER >= 520
typedef struct {
    Part *part;
    double at_s, sum[METRICS];
} Sample;

typedef struct {
    unsigned version, supported;
} Support;

int nvmlGpmQueryDeviceSupport(Part *device, Support *support)
{
    READ_GPU(device);
    RETURN_IF(support->version == 1 ? SUCCESS : INVALID_ARGUMENT);
    support->supported = device->gpu->major >= 9 && !device->gpu->slice_count;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(Sample **sample)
{
    RETURN_IF(refused(__func__, NULL));
    *sample = calloc(1, sizeof **sample);
    samples_held++;
    return SUCCESS;
}

int nvmlGpmSampleFree(Sample *sample)
{
    RETURN_IF(refused(__func__, NULL));
    free(sample);
    samples_held--;
    return SUCCESS;
}

static int take(Part *part, Sample *sample)
{
    sum_up(part);
    sample->part = part;
    sample->at_s = part->summed_to;
    memcpy(sample->sum, part->sum, sizeof sample->sum);
    return SUCCESS;
}

int nvmlGpmSampleGet(Part *device, Sample *sample)
{
    READ_GPU(device);
    RETURN_IF(device->gpu->major < 9 || device->gpu->slice_count ? NOT_SUPPORTED : SUCCESS);
    return take(device, sample);
}

int nvmlGpmMigSampleGet(Part *device, unsigned instance, Sample *sample)
{
    READ_GPU(device);
    RETURN_IF(device->gpu->major < 9 ? NOT_SUPPORTED : SUCCESS);
    int slice = (int)instance - FIRST_INSTANCE;
    RETURN_IF(slice >= 0 && slice < device->gpu->slice_count ? SUCCESS : INVALID_ARGUMENT);
    return take(&device->gpu->slices[slice], sample);
}

typedef struct {
    unsigned id;
    int code;
    double value;
    char *short_name, *long_name, *unit;
} Metric;

typedef struct {
    unsigned version, count;
    Sample *first, *second;
    Metric metrics[]; /* as many as the header of the day has room for */
} MetricsGet;

/* Samples that are less than 100 ms apart give nonsense, as the documentation warns. A slice has no
 * PCIe counters (20, 21). */
int nvmlGpmMetricsGet(MetricsGet *asked)
{
    RETURN_IF(asked->version == 1 ? SUCCESS : INVALID_ARGUMENT);
    Part *part = asked->second->part;
    READ(part);
    double seconds = asked->second->at_s - asked->first->at_s;
    RETURN_IF(part == asked->first->part && seconds > 0 ? SUCCESS : INVALID_ARGUMENT);
    for (unsigned i = 0; i < asked->count; i++) {
        Metric *metric = &asked->metrics[i];
        if (metric->id >= METRICS) {
            metric->code = INVALID_ARGUMENT;
            continue;
        }
        double counted = asked->second->sum[metric->id] - asked->first->sum[metric->id];
        int pcie = metric->id == 20 || metric->id == 21;
        metric->code = pcie && part->slice >= 0 ? NOT_SUPPORTED : part->metric_return[metric->id];
        metric->value = seconds < 0.0999 ? NONSENSE : counted / seconds;
    }
    return SUCCESS;
}
#endif
