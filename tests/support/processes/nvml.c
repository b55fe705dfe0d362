/* A stand-in for NVIDIA's management library (libnvidia-ml.so.1): one GPU that works at 37%, for machines without one.
   Ray asks the library for what its GPU metrics tell; what is missing here Ray takes as not supported.
   Signatures as in NVIDIA's "NVML API Reference Guide". */
#include <stdio.h>

enum { SUCCESS = 0, NOT_FOUND = 6 };
static int the_gpu;

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &the_gpu;
    return index == 0 ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    (void)device;
    snprintf(name, length, "Stand-in");
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    (void)device;
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-000000000000");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used) {
    (void)device;
    total_free_used[0] = 8ULL << 30;
    total_free_used[1] = 6ULL << 30;
    total_free_used[2] = 2ULL << 30;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *gpu_memory) {
    (void)device;
    gpu_memory[0] = 37;
    gpu_memory[1] = 25;
    return SUCCESS;
}

static int no_processes(void *device, unsigned *count, void *processes) {
    (void)device, (void)processes;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    return no_processes(device, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    return no_processes(device, count, processes);
}
