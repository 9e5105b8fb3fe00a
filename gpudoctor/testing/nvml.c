/* A libnvidia-ml.so.1 that answers from a table: what gpudoctor fake-driver puts before a program.
 *
 * The table is the file "answers" in the folder that GPUDOCTOR_FAKE_DRIVER names: lines sorted by
 * key, of the form  key TAB code TAB bytes in hex.  A key is  function|device  or
 * function|device|argument|...; the code is NVML's return code, or -1 where the call never returns.
 * wait|function|device has milliseconds as its code: so long does the first such call of a process
 * hold the driver's lock, behind which all others queue; wait|device|N, the first handle of that device.
 * latency|-1 has microseconds as its code: so long does every call take before it is answered.
 * The bytes are the struct, number or text as the caller wants it in memory. All knowledge of
 * what a GPU answers is in table_*.py; here is only how each function takes its arguments.
 * DRIVER is the branch (535): functions that came later are not in the library, as in a real one.
 */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef DRIVER
#define DRIVER 999
#endif

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, VERSION_MISMATCH = 25, NEVER = -1 };
#define SYSTEM (-1)
#define KEY_SIZE 256

struct record {
    char *key;
    int code;
    size_t size;
    unsigned char *bytes;
};

/* What a call says: NVML's code, and the record that it is from, if one speaks of this call. */
struct reply {
    int code;
    const struct record *record;
};

static struct record *records;
static size_t record_count;
static int has_waits;
static int latency_us;
static atomic_int started;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int nibble(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* The whole file with a zero behind it; NULL where it cannot be read. */
static char *whole_file(const char *folder)
{
    char path[4096], *text = NULL;
    long size;
    FILE *file;
    if (snprintf(path, sizeof path, "%s/answers", folder) >= (int)sizeof path || !(file = fopen(path, "rb")))
        return NULL;
    if (!fseek(file, 0, SEEK_END) && (size = ftell(file)) >= 0 && !fseek(file, 0, SEEK_SET)
        && (text = malloc((size_t)size + 1))) {
        text[fread(text, 1, (size_t)size, file)] = 0;
    }
    fclose(file);
    return text;
}

static void load(void)
{
    const char *folder = getenv("GPUDOCTOR_FAKE_DRIVER");
    char *text = folder ? whole_file(folder) : NULL, *line, *end;
    size_t lines = 0;
    if (!text)
        return;
    for (line = text; (line = strchr(line, '\n')); line++)
        lines++;
    if (!(records = calloc(lines + 1, sizeof *records)))
        return;
    for (line = text; (end = strchr(line, '\n')); line = end + 1) {
        struct record *record = &records[record_count];
        char *code = strchr(line, '\t'), *hex = code ? strchr(code + 1, '\t') : NULL;
        size_t place;
        *end = 0;
        if (!hex || hex > end)
            continue;
        *code++ = *hex++ = 0;
        record->key = line;
        record->code = atoi(code);
        record->size = (size_t)(end - hex) / 2;
        record->bytes = (unsigned char *)hex;
        for (place = 0; place < record->size; place++)
            record->bytes[place] = (unsigned char)(nibble(hex[2 * place]) << 4 | nibble(hex[2 * place + 1]));
        has_waits |= !strncmp(record->key, "wait|", 5);
        if (!strcmp(record->key, "latency|-1"))
            latency_us = record->code;
        record_count++;
    }
}

static struct record *find(const char *key)
{
    size_t low = 0, high = record_count;
    pthread_once(&once, load);
    high = record_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(key, records[middle].key);
        if (!order)
            return &records[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* A GPU that wakes, or a call that stalls: once in a process, and nobody else gets on meanwhile. */
static void queue(const char *name, int device)
{
    char key[KEY_SIZE];
    struct record *record;
    pthread_once(&once, load);
    if (!has_waits)
        return;
    snprintf(key, sizeof key, "wait|%s|%d", name, device);
    pthread_mutex_lock(&driver_lock);
    if ((record = find(key)) && record->code > 0) {
        struct timespec left = {record->code / 1000, record->code % 1000 * 1000000L};
        while (nanosleep(&left, &left) && errno == EINTR)
            ;
        record->code = 0;
    }
    pthread_mutex_unlock(&driver_lock);
}

/* The record's code; never comes back where the driver does not answer. */
static int code_of(const struct record *record)
{
    while (record->code == NEVER)
        pause();
    return record->code;
}

/* Look up function|device and, with arguments, function|device|a|b|c. A record without arguments
 * that says no speaks for all arguments. */
static struct reply answer(const char *name, int device, int count, const unsigned *args)
{
    char key[KEY_SIZE];
    int length = snprintf(key, sizeof key, "%s|%d", name, device), place;
    const struct record *record = find(key);
    queue(name, device);
    if (record && (code_of(record) || !count))
        return (struct reply){record->code, record};
    for (place = 0; place < count; place++)
        length += snprintf(key + length, sizeof key - (size_t)length, "|%u", args[place]);
    if (count && (record = find(key)))
        return (struct reply){code_of(record), record};
    snprintf(key, sizeof key, "*|%d", device);
    record = find(key);
    return (struct reply){record ? code_of(record) : NOT_SUPPORTED, NULL};
}

/* The way to the driver and back. */
static void travel(void)
{
    struct timespec left;
    pthread_once(&once, load);
    left.tv_sec = latency_us / 1000000;
    left.tv_nsec = latency_us % 1000000 * 1000L;
    while (latency_us && nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* One call: the table's answer to it, late by the latency. */
static struct reply look(const char *name, int device, int count, const unsigned *args)
{
    travel();
    return answer(name, device, count, args);
}

/* The same for what may be asked only after nvmlInit. */
static struct reply asked(const char *name, int device, int count, const unsigned *args)
{
    if (!atomic_load(&started))
        return (struct reply){UNINITIALIZED, NULL};
    if (device < SYSTEM)
        return (struct reply){INVALID_ARGUMENT, NULL};
    return look(name, device, count, args);
}

/* The device of a handle, or -2: a handle is the device's number in the table and 1. */
static int device_of(const void *handle)
{
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "device|%d", (int)(intptr_t)handle - 1);
    return handle && find(key) ? (int)(intptr_t)handle - 1 : -2;
}

static int given(struct reply reply, void *out)
{
    if (!reply.code && reply.record)
        memcpy(out, reply.record->bytes, reply.record->size);
    return reply.code;
}

static int copied(const char *name, void *handle, int count, const unsigned *args, void *out)
{
    return out ? given(asked(name, device_of(handle), count, args), out) : INVALID_ARGUMENT;
}

static int in_two(const char *name, void *handle, unsigned *one, unsigned *other)
{
    unsigned both[2] = {0, 0};
    int code = one && other ? copied(name, handle, 0, NULL, both) : INVALID_ARGUMENT;
    if (!code) {
        *one = both[0];
        *other = both[1];
    }
    return code;
}

static int text_of(struct reply reply, char *text, unsigned size)
{
    if (reply.code || !reply.record)
        return reply.code;
    if (!text)
        return INVALID_ARGUMENT;
    return reply.record->size > size ? INSUFFICIENT_SIZE : given(reply, text);
}

/* A struct that says its version in its first number; what the table does not hold is not known to this driver. */
__attribute__((unused)) /* by the oldest drivers */
static int versioned(const char *name, void *handle, unsigned *out)
{
    struct reply reply = {INVALID_ARGUMENT, NULL};
    if (out)
        reply = asked(name, device_of(handle), 1, out);
    return reply.code == NOT_SUPPORTED && !reply.record ? VERSION_MISMATCH : given(reply, out);
}

/* Masks of 64 bits: as many as the caller has room for, and zeros behind what the table holds. */
static int masks(const char *name, void *handle, unsigned words, unsigned long *out)
{
    struct reply reply = {INVALID_ARGUMENT, NULL};
    size_t room = words * sizeof *out;
    if (out && words)
        reply = asked(name, device_of(handle), 0, NULL);
    if (reply.code || !reply.record)
        return reply.code;
    memset(out, 0, room);
    memcpy(out, reply.record->bytes, reply.record->size < room ? reply.record->size : room);
    return SUCCESS;
}

/* The struct of the newest form has 24 bytes, and 32 in drivers 535.43 to 535.86 (protected memory behind the rest). */
__attribute__((unused)) /* by the oldest drivers */
static size_t newest_process(void)
{
    struct reply reply = look("nvmlSystemGetDriverVersion", SYSTEM, 0, NULL);
    int minor = 0;
    if (!reply.code && reply.record)
        sscanf((const char *)reply.record->bytes, "535.%d", &minor);
    return minor >= 43 && minor <= 86 ? 32 : 24;
}

/* Processes: the table holds 24 bytes each (pid, memory, GPU and compute instance), the oldest form 16 of them. */
static int processes(const char *name, void *handle, unsigned *count, unsigned char *out, size_t each)
{
    struct reply reply = {INVALID_ARGUMENT, NULL};
    unsigned room, held, place;
    if (count)
        reply = asked(name, device_of(handle), 0, NULL);
    if (reply.code || !reply.record)
        return reply.code;
    room = *count;
    held = *count = (unsigned)(reply.record->size / 24);
    if (held > room)
        return INSUFFICIENT_SIZE;
    if (held && !out)
        return INVALID_ARGUMENT;
    memset(out, 0, held * each);
    for (place = 0; place < held; place++)
        memcpy(out + place * each, reply.record->bytes + place * 24, each < 24 ? each : 24);
    return SUCCESS;
}

/* A handle from the number in the table; what the table does not hold has the code `unknown`. */
static int handle_to(struct reply reply, int unknown, void **out)
{
    int number;
    if (reply.code == NOT_SUPPORTED && !reply.record)
        return unknown;
    if (reply.code || !reply.record || reply.record->size != sizeof number)
        return reply.code ? reply.code : NOT_FOUND;
    memcpy(&number, reply.record->bytes, sizeof number);
    queue("device", number);
    *out = (void *)(intptr_t)(number + 1);
    return SUCCESS;
}

static int handle_by_text(const char *name, const char *text, void **out)
{
    char key[KEY_SIZE];
    const struct record *record;
    size_t place;
    if (!atomic_load(&started))
        return UNINITIALIZED;
    travel();
    if (!text || !out || snprintf(key, sizeof key, "%s|%s", name, text) >= KEY_SIZE)
        return INVALID_ARGUMENT;
    for (place = strlen(name); key[place]; place++)
        key[place] = (char)tolower((unsigned char)key[place]);
    record = find(key);
    return record ? handle_to((struct reply){code_of(record), record}, NOT_FOUND, out) : NOT_FOUND;
}

#include "functions.h"
