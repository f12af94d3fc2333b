/* In front of the OpenCL loader (LD_PRELOAD): calls fail as on a device that stopped working.
 *
 * The file named by LOSING_FILE holds lines "function status"; while it is there, those functions
 * fail with that status. LOSING_LOADER is the library that has the real ones.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *real(const char *name) {
    return dlsym(dlopen(getenv("LOSING_LOADER"), RTLD_NOW | RTLD_NOLOAD), name);
}

static int32_t failure(const char *name) {
    FILE *file = fopen(getenv("LOSING_FILE"), "r");
    char function[64];
    int status, found = 0;
    if (!file) return 0;
    while (!found && fscanf(file, "%63s %d", function, &status) == 2)
        if (!strcmp(function, name)) found = status;
    fclose(file);
    return found;
}

typedef void *P;
typedef int32_t (*Call)(P, P, P, P, P, P, P, P, P);

#define FAILING(name)                                                   \
    int32_t name(P a, P b, P c, P d, P e, P f, P g, P h, P i) {         \
        int32_t status = failure(#name);                                \
        return status ? status : ((Call)real(#name))(a, b, c, d, e, f, g, h, i); \
    }

FAILING(clEnqueueNDRangeKernel)
FAILING(clEnqueueReadBuffer)
FAILING(clEnqueueWriteBuffer)
FAILING(clEnqueueMarker)
FAILING(clEnqueueMarkerWithWaitList)
FAILING(clWaitForEvents)
FAILING(clFinish)

P clCreateBuffer(P context, uint64_t flags, size_t size, P host, int32_t *status) {
    int32_t refused = failure("clCreateBuffer");
    if (refused) {
        if (status) *status = refused;
        return NULL;
    }
    return ((P(*)(P, uint64_t, size_t, P, int32_t *))real("clCreateBuffer"))(
        context, flags, size, host, status);
}
