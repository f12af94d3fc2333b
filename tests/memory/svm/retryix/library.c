/* A library with the functions of retryix.h over malloc. What is defined when it is compiled makes
 * it lack a function, fail or talk nonsense. What it counts can be read from outside. */

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "retryix.h"

#ifndef FREE_RESULT
#define FREE_RESULT 0
#endif
#ifndef MIGRATE_RESULT
#define MIGRATE_RESULT 0
#endif
#ifndef AFFINITY_RESULT
#define AFFINITY_RESULT 0
#endif
#ifndef ODD
#define ODD 0
#endif

#define DOMAINS 3
#define SLOTS 4096
#define TOTAL ((size_t)4 << 30)
#define PAGE 4096

/* ---- for the tests */

long test_allocs, test_frees, test_strange_frees, test_migrations, test_texts, test_freed_texts;
long test_affinity_calls, test_workload_domain = -1, test_strange_affinities;
long test_free_result = FREE_RESULT, test_affinity_result = AFFINITY_RESULT;
long test_interrupt; /* Ctrl-C comes during the n-th call from now on; 0: never */
long test_slow_us;
atomic_long test_overlaps; /* calls that began while another was inside */
void *test_workload_pointer;
static atomic_long inside;

long test_bytes_in_use(void)
{
    struct mallinfo2 info = mallinfo2();
    return (long)(info.uordblks + info.hblkhd);
}

static void enter(void)
{
    if (atomic_fetch_add(&inside, 1))
        atomic_fetch_add(&test_overlaps, 1);
    if (test_slow_us)
        usleep((useconds_t)test_slow_us);
    if (test_interrupt && !--test_interrupt)
        raise(SIGINT);
}

static void leave(void) { atomic_fetch_sub(&inside, 1); }

/* ---- memory */

static struct slot {
    char *pointer;
    size_t size;
    int domain;
} slots[SLOTS];
static char *spare; /* the last that was freed: given out again, so that addresses come again */
static size_t spare_size;

static struct slot *find(const void *pointer)
{
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].pointer == pointer)
            return &slots[i];
    return NULL;
}

static size_t used(int domain)
{
    size_t sum = 0;
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].pointer && slots[i].domain == domain)
            sum += slots[i].size;
    return sum;
}

static char *fresh(size_t size)
{
#ifdef SAME_POINTER
    static char block[1 << 20];
    return block + (test_allocs ? SAME_POINTER : 0);
#endif
    if (spare && spare_size == size) {
        char *again = spare;
        spare = NULL;
        return again;
    }
    char *base = malloc(size + ODD);
    return base ? base + ODD : NULL;
}

static void *allocate(size_t size, int domain)
{
    domain = domain == -1 ? 0 : domain;
#ifdef ALLOC_FAILS
    return NULL;
#endif
    struct slot *slot = find(NULL);
    if (!slot || domain < 0 || domain >= DOMAINS || size > TOTAL - used(domain))
        return NULL;
    char *pointer = fresh(size);
    if (pointer) {
        *slot = (struct slot){pointer, size, domain};
        test_allocs++;
    }
    return pointer;
}

void *retryix_svm_alloc_topology_aware(size_t size, int domain)
{
    enter();
    void *pointer = allocate(size, domain);
    leave();
    return pointer;
}

static int give_back(void *pointer)
{
    struct slot *slot = pointer ? find(pointer) : NULL;
    if (!slot) {
        test_strange_frees++;
        return -EINVAL;
    }
    if (test_free_result)
        return (int)test_free_result;
    test_frees++;
#ifndef SAME_POINTER
    memset(slot->pointer, 0xdd, slot->size < PAGE ? slot->size : PAGE);
    if (spare)
        free(spare - ODD);
    spare = slot->pointer;
    spare_size = slot->size;
#endif
    *slot = (struct slot){0};
    return 0;
}

#ifndef LACKS_FREE
int retryix_svm_free(void *pointer)
{
    enter();
    int code = give_back(pointer);
    leave();
    return code;
}
#endif

static int move(void *pointer, size_t size, int from, int to)
{
    struct slot *slot = pointer ? find(pointer) : NULL;
    if (MIGRATE_RESULT)
        return MIGRATE_RESULT;
    if (!slot || slot->size != size || slot->domain != from)
        return -EINVAL;
    if (to < 0 || to >= DOMAINS)
        return -ENODEV;
    test_migrations++;
#ifndef STAYS
    slot->domain = to;
#endif
    return 0;
}

#ifndef LACKS_MIGRATE
int retryix_svm_migrate_between_domains(void *pointer, size_t size, int from, int to)
{
    enter();
    int code = move(pointer, size, from, to);
    leave();
    return code;
}
#endif

/* ---- affinity */

int retryix_set_workload_topology_affinity(void *pointer, int domain)
{
    enter();
    int code = (int)test_affinity_result;
    test_affinity_calls++;
    if (pointer && !find(pointer))
        test_strange_affinities++;
    if (!code) {
        test_workload_pointer = pointer;
        test_workload_domain = domain;
    }
    leave();
    return code;
}

/* ---- texts */

static char *text(const char *content)
{
    char *copy = content ? strdup(content) : NULL;
    test_texts += copy != NULL;
    leave();
    return copy;
}

#ifndef PLAIN_FREE
void retryix_free_string(char *text)
{
    enter();
    test_freed_texts++;
    free(text);
    leave();
}
#endif

char *retryix_discover_svm_topology_json(void)
{
    enter();
#ifdef TOPOLOGY_TEXT
    return text(TOPOLOGY_TEXT);
#endif
#ifdef HUGE_BYTES
    char *padded = malloc(HUGE_BYTES);
    int begun = sprintf(padded, "{\"domains\": [{\"id\": 0}], \"padding\": \"");
    memset(padded + begun, 'x', HUGE_BYTES - begun);
    strcpy(padded + HUGE_BYTES - 3, HUGE_END);
    test_texts++;
    leave();
    return padded;
#endif
    char made[1024];
    snprintf(
        made, sizeof made,
        "{\"vendor\": \"RetryIX \xe6\x8b\x93\xe6\x92\xb2\", \"domains\": ["
        "{\"id\": 0, \"name\": \"node:0\", \"kind\": \"dram\", \"total_bytes\": %zu,"
        " \"free_bytes\": %zu, \"cpus\": [0], \"distances\": [10, 21, 31]},"
        "{\"id\": 1, \"name\": \"node:1\", \"kind\": \"dram\", \"total_bytes\": %zu,"
        " \"free_bytes\": %zu, \"cpus\": [1], \"distances\": [21, 10, 31], \"slot\": \"B2\"},"
        "{\"id\": 2, \"name\": \"far\", \"kind\": \"cxl\", \"total_bytes\": %zu,"
        " \"free_bytes\": %zu, \"cpus\": [], \"distances\": [31, 31, 10]}]}",
        TOTAL, TOTAL - used(0), TOTAL, TOTAL - used(1), TOTAL, TOTAL - used(2));
    return text(made);
}

char *retryix_svm_get_statistics(void)
{
    enter();
#ifdef STATISTICS_TEXT
    return text(STATISTICS_TEXT);
#endif
    char made[128];
    snprintf(made, sizeof made, "{\"allocs\": %ld, \"frees\": %ld}", test_allocs, test_frees);
    return text(made);
}

char *retryix_svm_get_topology_metrics(void *pointer)
{
    enter();
#ifdef METRICS_TEXT
    return text(METRICS_TEXT);
#endif
    char made[128];
    struct slot *slot = pointer ? find(pointer) : NULL;
    if (pointer && !slot)
        return text(NULL);
    if (slot)
        snprintf(made, sizeof made, "{\"pages\": {\"%d\": %zu}, \"heat\": 0.5}", slot->domain,
                 (slot->size + PAGE - 1) / PAGE);
    else
        snprintf(made, sizeof made, "{\"used\": [%zu, %zu, %zu]}", used(0), used(1), used(2));
    return text(made);
}
