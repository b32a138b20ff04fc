/* GPUs in MIG mode without hardware: the part of NVML that the node program calls, in memory.
 *
 * For measurements only. It answers at once, so that what is measured is the program; only making
 * a GPU instance takes NVML_CREATE_MS milliseconds. NVML_MACHINE names the file that says what
 * GPUs there are (written by hack/bench/node/library.py). As the kernel module does, it keeps a
 * directory for each instance, below the host root that the file names. One process at a time.
 * Structures and names of functions are those of nvml.h.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, ABSENT = 6, TOO_SMALL = 7,
       TIMED_OUT = 10, IN_USE = 19, TAKEN = 23, WRONG_VERSION = 25 };
enum { GPUS = 16, PROFILES = 24, STARTS = 16, INSTANCES = 15, PARTS = 8 };
typedef unsigned u;
typedef unsigned long long ull;

struct part_profile { u kind, id, slices, count, processors; char name[96]; };
struct profile {
    u kind, id, p2p, slices, count, processors, copy, dec, enc, jpeg, ofa, size, starts, parts;
    ull memory;
    u start[STARTS];
    struct part_profile part[PARTS];
    char name[96];
};
struct gpu;
struct instance;
struct part { int used; u id; struct instance *of; struct part_profile *profile; char uuid[96]; };
struct instance { int used; u id, start; struct gpu *of; struct profile *profile; struct part part[PARTS]; };
struct gpu { char uuid[96], bus[32]; u minor; struct instance instance[INSTANCES]; };
struct place { u start, size; };
struct event_set { int unused; };

static char host[512], driver[80], product[96];
static u cuda, architecture, brand, major, minor, gpus, profiles;
static ull memory;
static struct gpu gpu[GPUS];
static struct profile profile[PROFILES];
static long create_ms;
static int open_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void rest_of(const char *line, int used, char *into, size_t room)
{
    snprintf(into, room, "%s", line + used);
    into[strcspn(into, "\n")] = 0;
}

static void read_machine(void)
{
    FILE *file = fopen(getenv("NVML_MACHINE") ? getenv("NVML_MACHINE") : "", "r");
    char line[1024];
    int used;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        struct profile *p = profiles ? &profile[profiles - 1] : 0;
        char word[32];
        used = 0;
        sscanf(line, "%31s %n", word, &used);
        if (!strcmp(word, "host")) rest_of(line, used, host, sizeof host);
        else if (!strcmp(word, "driver")) rest_of(line, used, driver, sizeof driver);
        else if (!strcmp(word, "product")) rest_of(line, used, product, sizeof product);
        else if (!strcmp(word, "facts"))
            sscanf(line + used, "%u %u %u %u %u %llu", &cuda, &architecture, &brand, &major, &minor, &memory);
        else if (!strcmp(word, "gpu") && gpus < GPUS) {
            struct gpu *g = &gpu[gpus++];
            sscanf(line + used, "%95s %u %31s", g->uuid, &g->minor, g->bus);
        } else if (!strcmp(word, "profile") && profiles < PROFILES) {
            int more = 0;
            p = &profile[profiles++];
            sscanf(line + used, "%u %u %u %u %u %u %u %u %u %u %u %u %llu %n", &p->kind, &p->id, &p->p2p,
                   &p->slices, &p->count, &p->processors, &p->copy, &p->dec, &p->enc, &p->jpeg, &p->ofa,
                   &p->size, &p->memory, &more);
            rest_of(line + used, more, p->name, sizeof p->name);
        } else if (p && !strcmp(word, "start") && p->starts < STARTS)
            sscanf(line + used, "%u", &p->start[p->starts++]);
        else if (p && !strcmp(word, "part") && p->parts < PARTS) {
            struct part_profile *c = &p->part[p->parts++];
            int more = 0;
            sscanf(line + used, "%u %u %u %u %u %n", &c->kind, &c->id, &c->slices, &c->count, &c->processors, &more);
            rest_of(line + used, more, c->name, sizeof c->name);
        }
    }
    fclose(file);
    create_ms = getenv("NVML_CREATE_MS") ? atol(getenv("NVML_CREATE_MS")) : 0;
}

/* The numbers of capabilities are the kernel module's: 135 for a GPU, 9 for a GPU instance. */
static void folder(struct instance *gi, int part, char *path, size_t room)
{
    int used = snprintf(path, room, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u", host, gi->of->minor, gi->id);
    if (part >= 0) snprintf(path + used, room - used, "/ci%d", part);
}

static void show(struct instance *gi, int part)
{
    char path[700];
    FILE *file;
    folder(gi, part, path, sizeof path - 8);
    mkdir(path, 0555);
    strcat(path, "/access");
    if (!(file = fopen(path, "w"))) return;
    fprintf(file, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
            3 + 135 * gi->of->minor + 9 * gi->id + (part < 0 ? 0 : 1 + (u)part));
    fclose(file);
}

static void hide(struct instance *gi, int part)
{
    char path[700], access[708];
    folder(gi, part, path, sizeof path);
    snprintf(access, sizeof access, "%s/access", path);
    unlink(access);
    rmdir(path);
}

static void random_uuid(char *into)
{
    unsigned char b[16] = {0};
    FILE *file = fopen("/dev/urandom", "r");
    if (file) { if (fread(b, 1, 16, file) != 16) b[0] = 1; fclose(file); }
    b[6] = (b[6] & 15) | 64;
    b[8] = (b[8] & 63) | 128;
    sprintf(into, "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
            b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static int is_gpu(void *h) { return (char *)h >= (char *)gpu && (char *)h < (char *)(gpu + gpus); }
static struct profile *by_id(u id)
{
    for (u i = 0; i < profiles; i++) if (profile[i].id == id) return &profile[i];
    return 0;
}

static int text(char *into, u room, const char *value)
{
    if (strlen(value) >= room) return TOO_SMALL;
    strcpy(into, value);
    return OK;
}

const char *nvmlErrorString(int code) { static char t[32]; snprintf(t, sizeof t, "error %d", code); return t; }
int nvmlInitWithFlags(u flags) { (void)flags; if (!open_count++ && !gpus) read_machine(); return gpus ? OK : 9; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!open_count) return UNINITIALIZED; open_count--; return OK; }
int nvmlSystemGetDriverVersion(char *into, u room) { return text(into, room, driver); }
int nvmlSystemGetNVMLVersion(char *into, u room) { return text(into, room, driver); }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = (int)cuda; return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = (int)cuda; return OK; }
int nvmlDeviceGetCount_v2(u *count) { *count = gpus; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u i, void **h) { if (i >= gpus) return INVALID; *h = &gpu[i]; return OK; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **h)
{
    for (u i = 0; i < gpus; i++) {
        const char *known = gpu[i].bus;
        size_t a = strlen(known), b = strlen(bus);
        if (b <= a && !strcasecmp(known + a - b, bus)) { *h = &gpu[i]; return OK; }
    }
    return ABSENT;
}

int nvmlDeviceGetUUID(void *h, char *into, u room)
{
    return text(into, room, is_gpu(h) ? ((struct gpu *)h)->uuid : ((struct part *)h)->uuid);
}

int nvmlDeviceGetPciInfo_v3(struct gpu *g, void *info)
{
    struct { char legacy[16]; u domain, bus, device, id, subsystem; char bus_id[32]; } *p = info;
    memset(p, 0, sizeof *p);
    snprintf(p->legacy, sizeof p->legacy, "%s", g->bus + 4);
    sscanf(g->bus, "%x:%x:%x", &p->domain, &p->bus, &p->device);
    snprintf(p->bus_id, sizeof p->bus_id, "%s", g->bus);
    return OK;
}

int nvmlDeviceGetMinorNumber(struct gpu *g, u *n) { *n = g->minor; return OK; }
int nvmlDeviceGetMigMode(void *h, u *now, u *next)
{
    const char *mode = getenv("NVML_MIG");
    if (!is_gpu(h)) return INVALID;
    *now = *next = mode ? (u)atol(mode) : 1;
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { (void)h; *a = (int)major; *b = (int)minor; return OK; }
int nvmlDeviceGetArchitecture(void *h, u *a) { (void)h; *a = architecture; return OK; }
int nvmlDeviceGetBrand(void *h, u *b) { (void)h; *b = brand; return OK; }
int nvmlDeviceGetName(void *h, char *into, u room) { (void)h; return text(into, room, product); }
int nvmlDeviceGetMemoryInfo(void *h, ull *m) { (void)h; m[0] = m[1] = memory << 20; m[2] = 0; return OK; }

struct profile_info_2 {
    u version, id, p2p, slices, count, processors, copy, dec, enc, jpeg, ofa;
    ull memory;
    char name[96];
};

int nvmlDeviceGetGpuInstanceProfileInfoV(void *h, u kind, struct profile_info_2 *info)
{
    if (!is_gpu(h)) return INVALID;
    if (info->version != (sizeof *info | 2u << 24)) return WRONG_VERSION;
    for (u i = 0; i < profiles; i++) {
        struct profile *p = &profile[i];
        if (p->kind != kind) continue;
        info->id = p->id; info->p2p = p->p2p; info->slices = p->slices; info->count = p->count;
        info->processors = p->processors; info->copy = p->copy; info->dec = p->dec; info->enc = p->enc;
        info->jpeg = p->jpeg; info->ofa = p->ofa; info->memory = p->memory;
        snprintf(info->name, sizeof info->name, "MIG %.90s", p->name);
        return OK;
    }
    return UNSUPPORTED;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *h, u id, struct place *places, u *count)
{
    struct profile *p = by_id(id);
    u room = *count;
    if (!is_gpu(h) || !p) return INVALID;
    *count = p->starts;
    if (!places) return OK;
    if (room < p->starts) return TOO_SMALL;
    for (u i = 0; i < p->starts; i++) { places[i].start = p->start[i]; places[i].size = p->size; }
    return OK;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(struct gpu *g, u id, struct place *place, void **h)
{
    struct profile *p = by_id(id);
    struct timespec pause = { create_ms / 1000, create_ms % 1000 * 1000000 };
    struct instance *made = 0;
    if (!is_gpu(g) || !p || place->size != p->size) return INVALID;
    pthread_mutex_lock(&mutex);
    for (u i = 0; i < INSTANCES; i++) {
        struct instance *gi = &g->instance[i];
        if (gi->used && gi->start < place->start + place->size && place->start < gi->start + gi->profile->size) {
            pthread_mutex_unlock(&mutex);
            return TAKEN;
        }
        if (!gi->used && !made && i) made = gi;
    }
    if (made) {
        memset(made, 0, sizeof *made);
        made->used = 1; made->of = g; made->profile = p; made->start = place->start; made->id = (u)(made - g->instance);
    }
    pthread_mutex_unlock(&mutex);
    if (!made) return TAKEN;
    if (create_ms) nanosleep(&pause, 0);
    show(made, -1);
    *h = made;
    return OK;
}

int nvmlGpuInstanceDestroy(struct instance *gi)
{
    if (!gi->used) return ABSENT;
    for (int i = 0; i < PARTS; i++) if (gi->part[i].used) return IN_USE;
    hide(gi, -1);
    gi->used = 0;
    return OK;
}

int nvmlDeviceGetGpuInstances(struct gpu *g, u id, void **into, u *count)
{
    *count = 0;
    for (u i = 0; i < INSTANCES; i++)
        if (g->instance[i].used && g->instance[i].profile->id == id) into[(*count)++] = &g->instance[i];
    return OK;
}

int nvmlDeviceGetGpuInstanceById(struct gpu *g, u id, void **h)
{
    if (id >= INSTANCES || !g->instance[id].used) return ABSENT;
    *h = &g->instance[id];
    return OK;
}

int nvmlGpuInstanceGetInfo(struct instance *gi, void *info)
{
    struct { void *gpu; u id, profile; struct place place; } *p = info;
    if (!gi->used) return ABSENT;
    p->gpu = gi->of; p->id = gi->id; p->profile = gi->profile->id;
    p->place.start = gi->start; p->place.size = gi->profile->size;
    return OK;
}

struct part_info_2 { u version, id, slices, count, processors, copy, dec, enc, jpeg, ofa; char name[96]; };

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct instance *gi, u kind, u engines, struct part_info_2 *info)
{
    struct profile *p = gi->profile;
    if (!gi->used) return ABSENT;
    if (engines) return INVALID;
    if (info->version != (sizeof *info | 2u << 24)) return WRONG_VERSION;
    for (u i = 0; i < p->parts; i++) {
        struct part_profile *c = &p->part[i];
        if (c->kind != kind) continue;
        info->id = c->id; info->slices = c->slices; info->count = c->count; info->processors = c->processors;
        info->copy = p->copy; info->dec = p->dec; info->enc = p->enc; info->jpeg = p->jpeg; info->ofa = p->ofa;
        snprintf(info->name, sizeof info->name, "MIG %.90s", c->name);
        return OK;
    }
    return UNSUPPORTED;
}

int nvmlGpuInstanceCreateComputeInstance(struct instance *gi, u id, void **h)
{
    struct part_profile *kind = 0;
    if (!gi->used) return ABSENT;
    for (u i = 0; i < gi->profile->parts; i++) if (gi->profile->part[i].id == id) kind = &gi->profile->part[i];
    if (!kind) return INVALID;
    for (u i = 0, used = 0; i < PARTS; i++) {
        struct part *c = &gi->part[i];
        if (c->used) { used += c->profile->slices; continue; }
        if (used + kind->slices > gi->profile->slices) return TAKEN;
        c->used = 1; c->id = i; c->of = gi; c->profile = kind;
        random_uuid(c->uuid);
        show(gi, (int)i);
        *h = c;
        return OK;
    }
    return TAKEN;
}

int nvmlComputeInstanceDestroy(struct part *c)
{
    if (!c->used) return ABSENT;
    hide(c->of, (int)c->id);
    c->used = 0;
    return OK;
}

int nvmlGpuInstanceGetComputeInstances(struct instance *gi, u id, void **into, u *count)
{
    if (!gi->used) return ABSENT;
    *count = 0;
    for (int i = 0; i < PARTS; i++)
        if (gi->part[i].used && gi->part[i].profile->id == id) into[(*count)++] = &gi->part[i];
    return OK;
}

int nvmlGpuInstanceGetComputeInstanceById(struct instance *gi, u id, void **h)
{
    if (!gi->used || id >= PARTS || !gi->part[id].used) return ABSENT;
    *h = &gi->part[id];
    return OK;
}

int nvmlComputeInstanceGetInfo_v2(struct part *c, void *info)
{
    struct { void *device, *gi; u id, profile; struct place place; } *p = info;
    if (!c->used) return ABSENT;
    p->device = c; p->gi = c->of; p->id = c->id; p->profile = c->profile->id;
    p->place.start = 0; p->place.size = c->profile->slices;
    return OK;
}

int nvmlDeviceGetAttributes_v2(struct part *c, void *into)
{
    struct { u processors, copy, dec, enc, jpeg, ofa, gi_slices, ci_slices; ull memory; } *a = into;
    struct profile *p = c->of->profile;
    if (!c->used) return ABSENT;
    a->processors = c->profile->processors; a->copy = p->copy; a->dec = p->dec; a->enc = p->enc;
    a->jpeg = p->jpeg; a->ofa = p->ofa; a->gi_slices = p->slices; a->ci_slices = c->profile->slices;
    a->memory = p->memory;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *h, u *count, void *into) { (void)h; (void)into; *count = 0; return OK; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, u *count, void *into) { (void)h; (void)into; *count = 0; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *h, ull *types) { (void)h; *types = 8; return OK; }
int nvmlEventSetCreate(void **set) { *set = calloc(1, sizeof(struct event_set)); return OK; }
int nvmlEventSetFree(void *set) { free(set); return OK; }
int nvmlDeviceRegisterEvents(void *h, ull types, void *set) { (void)h; (void)types; (void)set; return OK; }

int nvmlEventSetWait_v2(void *set, void *data, u ms)
{
    struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
    (void)set; (void)data;
    nanosleep(&pause, 0);
    return TIMED_OUT;
}
