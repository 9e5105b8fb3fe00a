/* Every function of the library, by the way it takes its arguments. */

int nvmlInitWithFlags(unsigned flags)
{
    struct reply reply = look("nvmlInit", SYSTEM, 0, NULL);
    (void)flags;
    if (!reply.record)
        return DRIVER_NOT_LOADED;
    if (!reply.code)
        atomic_fetch_add(&started, 1);
    return reply.code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    if (atomic_fetch_sub(&started, 1) > 0)
        return SUCCESS;
    atomic_fetch_add(&started, 1);
    return UNINITIALIZED;
}

const char *nvmlErrorString(int code)
{
    char key[KEY_SIZE];
    const struct record *record;
    snprintf(key, sizeof key, "nvmlErrorString|%d", code);
    record = find(key);
    return record ? (const char *)record->bytes : "unknown error";
}

static int system_answer(const char *name, void *out)
{
    struct reply reply = asked(name, SYSTEM, 0, NULL);
    return out ? given(reply, out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetCount_v2(unsigned *out) { return system_answer("nvmlDeviceGetCount", out); }
int nvmlDeviceGetCount(unsigned *out) { return system_answer("nvmlDeviceGetCount", out); }
int nvmlSystemGetCudaDriverVersion(int *out) { return system_answer("nvmlSystemGetCudaDriverVersion", out); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return system_answer("nvmlSystemGetCudaDriverVersion", out); }
#if DRIVER >= 535
int nvmlSystemGetConfComputeState(void *out) { return system_answer(__func__, out); }
#endif

/* Asked for after a failed nvmlInit too. */
int nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    return text_of(look(__func__, SYSTEM, 0, NULL), text, size);
}

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    return text_of(asked(__func__, SYSTEM, 0, NULL), text, size);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    struct reply reply = asked("nvmlDeviceGetHandleByIndex", (int)index, 0, NULL);
    return out ? handle_to(reply, INVALID_ARGUMENT, out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByIndex(unsigned index, void **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) { return handle_by_text(__func__, uuid, out); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out)
{
    return handle_by_text("nvmlDeviceGetHandleByPciBusId", bus_id, out);
}
int nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **out) { return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out); }

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned place, void **out)
{
    return handle_to(asked(__func__, device_of(device), 1, &place), NOT_FOUND, out);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **out)
{
    return handle_to(asked(__func__, device_of(device), 0, NULL), INVALID_ARGUMENT, out);
}

/* one answer: a number or a struct without a version */
#define PLAIN(name) int name(void *device, void *out) { return copied(#name, device, 0, NULL, out); }
PLAIN(nvmlDeviceGetArchitecture)
PLAIN(nvmlDeviceGetAttributes_v2)
PLAIN(nvmlDeviceGetBAR1MemoryInfo)
PLAIN(nvmlDeviceGetBrand)
PLAIN(nvmlDeviceGetComputeInstanceId)
PLAIN(nvmlDeviceGetComputeMode)
PLAIN(nvmlDeviceGetCurrPcieLinkGeneration)
PLAIN(nvmlDeviceGetCurrPcieLinkWidth)
PLAIN(nvmlDeviceGetCurrentClocksThrottleReasons)
PLAIN(nvmlDeviceGetDisplayActive)
PLAIN(nvmlDeviceGetDisplayMode)
PLAIN(nvmlDeviceGetEnforcedPowerLimit)
PLAIN(nvmlDeviceGetFanSpeed)
PLAIN(nvmlDeviceGetGpuInstanceId)
PLAIN(nvmlDeviceGetIndex)
PLAIN(nvmlDeviceGetMaxMigDeviceCount)
PLAIN(nvmlDeviceGetMaxPcieLinkGeneration)
PLAIN(nvmlDeviceGetMaxPcieLinkWidth)
PLAIN(nvmlDeviceGetMemoryInfo)
PLAIN(nvmlDeviceGetMinorNumber)
PLAIN(nvmlDeviceGetPciInfo_v2)
PLAIN(nvmlDeviceGetPciInfo_v3)
PLAIN(nvmlDeviceGetPcieReplayCounter)
PLAIN(nvmlDeviceGetPerformanceState)
PLAIN(nvmlDeviceGetPersistenceMode)
PLAIN(nvmlDeviceGetPowerManagementDefaultLimit)
PLAIN(nvmlDeviceGetPowerManagementLimit)
PLAIN(nvmlDeviceGetPowerUsage)
PLAIN(nvmlDeviceGetRowRemapperHistogram)
PLAIN(nvmlDeviceGetUtilizationRates)
PLAIN(nvmlDeviceGetVirtualizationMode)
PLAIN(nvmlDeviceIsMigDeviceHandle)
#if DRIVER >= 510
PLAIN(nvmlDeviceGetGpuMaxPcieLinkGeneration)
PLAIN(nvmlDeviceGetModuleId)
#endif
#if DRIVER >= 525
PLAIN(nvmlDeviceGetGpuFabricInfo)
#endif
#if DRIVER >= 535
PLAIN(nvmlDeviceGetCurrentClocksEventReasons)
#endif

/* one answer of a struct that begins with its version */
#define VERSIONED(name) int name(void *device, void *out) { return versioned(#name, device, out); }
#if DRIVER >= 510
VERSIONED(nvmlDeviceGetMemoryInfo_v2)
#endif
#if DRIVER >= 535
VERSIONED(nvmlDeviceGetAddressingMode)
#endif
#if DRIVER >= 550
VERSIONED(nvmlDeviceGetGpuFabricInfoV)
VERSIONED(nvmlDeviceGetSramEccErrorStatus)
#endif
#if DRIVER >= 565
VERSIONED(nvmlDeviceGetRepairStatus)
VERSIONED(nvmlDeviceGetUnrepairableMemoryFlag_v1)
#endif
#if DRIVER >= 570
VERSIONED(nvmlDeviceGetMarginTemperature)
#endif

/* answers with a code and nothing else */
int nvmlDeviceValidateInforom(void *device)
{
    return asked(__func__, device_of(device), 0, NULL).code;
}

#define TEXT(name)                                                            \
    int name(void *device, char *text, unsigned size)                         \
    {                                                                         \
        return text_of(asked(#name, device_of(device), 0, NULL), text, size); \
    }
TEXT(nvmlDeviceGetBoardPartNumber)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetSerial)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetVbiosVersion)

#define TWO(name) int name(void *device, unsigned *one, unsigned *other) { return in_two(#name, device, one, other); }
TWO(nvmlDeviceGetCudaComputeCapability)
TWO(nvmlDeviceGetDecoderUtilization)
TWO(nvmlDeviceGetDriverModel)
#if DRIVER >= 570
TWO(nvmlDeviceGetDriverModel_v2)
#endif
TWO(nvmlDeviceGetEccMode)
TWO(nvmlDeviceGetEncoderUtilization)
TWO(nvmlDeviceGetMigMode)
TWO(nvmlDeviceGetPowerManagementLimitConstraints)

/* one answer by one argument */
#define BY(name) int name(void *device, unsigned what, void *out) { return copied(#name, device, 1, &what, out); }
BY(nvmlDeviceGetApplicationsClock)
BY(nvmlDeviceGetClockInfo)
BY(nvmlDeviceGetDefaultApplicationsClock)
BY(nvmlDeviceGetFanSpeed_v2)
BY(nvmlDeviceGetMaxClockInfo)
BY(nvmlDeviceGetNvLinkRemoteDeviceType)
BY(nvmlDeviceGetNvLinkRemotePciInfo_v2)
BY(nvmlDeviceGetNvLinkState)
BY(nvmlDeviceGetNvLinkVersion)
BY(nvmlDeviceGetPcieThroughput)
BY(nvmlDeviceGetTemperature)
BY(nvmlDeviceGetTemperatureThreshold)

int nvmlDeviceGetTotalEccErrors(void *device, unsigned error, unsigned counter, void *out)
{
    unsigned args[] = {error, counter};
    return copied(__func__, device, 2, args, out);
}

int nvmlDeviceGetMemoryErrorCounter(void *device, unsigned error, unsigned counter, unsigned location, void *out)
{
    unsigned args[] = {error, counter, location};
    return copied(__func__, device, 3, args, out);
}

#if DRIVER >= 570
/* version, sensor, temperature: the sensor is asked for, the temperature is the answer */
int nvmlDeviceGetTemperatureV(void *device, unsigned *out)
{
    if (!out || out[0] != (12 | 1 << 24))
        return out ? VERSION_MISMATCH : INVALID_ARGUMENT;
    return nvmlDeviceGetTemperature(device, out[1], &out[2]);
}
#endif

int nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, unsigned *out)
{
    unsigned far = (unsigned)device_of(other);
    return copied(__func__, device, 1, &far, out);
}

int nvmlDeviceGetP2PStatus(void *device, void *other, unsigned index, unsigned *out)
{
    unsigned args[] = {(unsigned)device_of(other), index};
    return copied(__func__, device, 2, args, out);
}

int nvmlDeviceGetCpuAffinity(void *device, unsigned words, unsigned long *out)
{
    return masks(__func__, device, words, out);
}

int nvmlDeviceGetMemoryAffinity(void *device, unsigned words, unsigned long *out, unsigned scope)
{
    (void)scope;
    return masks(__func__, device, words, out);
}

#define RUNNING(name, suffix, each)                                       \
    int name##suffix(void *device, unsigned *count, void *out)            \
    {                                                                     \
        return processes(#name, device, count, out, each);                \
    }
#define RUNNING_ALL(suffix, each)                                         \
    RUNNING(nvmlDeviceGetComputeRunningProcesses, suffix, each)           \
    RUNNING(nvmlDeviceGetGraphicsRunningProcesses, suffix, each)          \
    RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, suffix, each)
RUNNING_ALL(, 16)
RUNNING_ALL(_v2, 24)
#if DRIVER >= 510
RUNNING_ALL(_v3, newest_process())
#endif

/* No process was sampled: what an idle GPU says. */
int nvmlDeviceGetProcessUtilization(void *device, void *out, unsigned *count, unsigned long long since)
{
    struct reply reply = asked(__func__, device_of(device), 0, NULL);
    (void)out, (void)since;
    if (count)
        *count = 0;
    return reply.code;
}

struct field {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type;
    int code;
    unsigned char value[8];
};

/* Each value has its own code; the table holds its type (4 bytes) and 8 bytes of value. */
int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    int code = count > 0 && fields ? asked(__func__, device_of(device), 0, NULL).code : INVALID_ARGUMENT, place;
    if (code)
        return code;
    for (place = 0; place < count; place++) {
        struct field *field = &fields[place];
        unsigned args[] = {field->id, field->scope};
        struct reply reply = answer(__func__, device_of(device), 2, args); /* all of them in one call */
        field->code = reply.code;
        field->timestamp = field->latency_us = 0;
        if (!reply.code && reply.record && reply.record->size == 12) {
            memcpy(&field->type, reply.record->bytes, 4);
            memcpy(field->value, reply.record->bytes + 4, 8);
        }
    }
    return SUCCESS;
}

/* Events: each line "device type data" that is appended to the file "events" beside the table is one. */
struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static long events_read;

int nvmlEventSetCreate(void **set)
{
    *set = (void *)1;
    return atomic_load(&started) ? SUCCESS : UNINITIALIZED;
}

int nvmlEventSetFree(void *set) { return set ? SUCCESS : INVALID_ARGUMENT; }

int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
    *types = 0x1f;
    return device_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    (void)types;
    return !set || device_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    const struct timespec pause = {0, 20 * 1000 * 1000};
    char path[4096];
    if (!set || !event || snprintf(path, sizeof path, "%s/events", getenv("GPUDOCTOR_FAKE_DRIVER")) >= (int)sizeof path)
        return INVALID_ARGUMENT;
    for (;; timeout_ms -= timeout_ms < 20 ? timeout_ms : 20) {
        FILE *file = fopen(path, "r");
        int device, found = 0;
        if (file) {
            fseek(file, events_read, SEEK_SET);
            memset(event, 0, sizeof *event);
            if ((found = fscanf(file, "%d %llu %llu\n", &device, &event->type, &event->data) == 3)) {
                events_read = ftell(file);
                event->device = (void *)(intptr_t)(device + 1);
            }
            fclose(file);
        }
        if (found || !timeout_ms)
            return found ? SUCCESS : TIMEOUT;
        nanosleep(&pause, NULL);
    }
}

int nvmlEventSetWait(void *set, struct event *event, unsigned timeout_ms) { return nvmlEventSetWait_v2(set, event, timeout_ms); }
