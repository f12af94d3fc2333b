/* The C functions that Holdfast's provider `retryix` calls.
 *
 * A library that exports all seven can be used:
 *
 *     HOLDFAST_RETRYIX_LIBRARY=/path/to/libretryix.so
 *
 * Calls into one library come one at a time, from any thread.
 *
 * Domains are numbered from 0, each number once, as the topology lists them; they need not be
 * consecutive. Errors are negative errno values.
 *
 * Texts are JSON in UTF-8, end with a zero byte and belong to the caller, who gives them back once:
 * with retryix_free_string() where the library exports it, else with free() of the C library. On
 * Windows, where a library may have a C library of its own, export retryix_free_string().
 */

#ifndef HOLDFAST_RETRYIX_H
#define HOLDFAST_RETRYIX_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The domains as they are now; NULL on failure. Asked again before each allocation.
 *
 *     {"domains": [{"id": 0, "name": "node:0", "kind": "dram", "total_bytes": 8589934592,
 *                   "free_bytes": 4294967296, "cpus": [0, 1], "distances": [10, 21]},
 *                  {"id": 1}]}
 *
 * Only "id" is required. "free_bytes" is what an allocation can count on; "distances" are to each
 * domain in the order of the list, 10 being local. What else is there is kept as it is.
 */
char *retryix_discover_svm_topology_json(void);

/* `size` bytes in a domain, or where the library sees fit for -1; NULL on failure. The host may
 * read and write all of them until they are freed. Any alignment will do. The memory overlaps no
 * other that was not freed yet.
 */
void *retryix_svm_alloc_topology_aware(size_t size, int domain);

/* Give memory back: 0, or a negative errno; then it is still there and can be freed again. */
int retryix_svm_free(void *pointer);

/* Run the work of this process beside a domain, for the sake of the memory at `pointer`, until the
 * next call; it outlasts that memory. NULL and -1: run it where it ran before the first call.
 * 0, or a negative errno; then nothing has changed.
 */
int retryix_set_workload_topology_affinity(void *pointer, int domain);

/* What the library counts: any JSON object; NULL on failure. */
char *retryix_svm_get_statistics(void);

/* Figures of one allocation, or of all for NULL: any JSON object; NULL on failure.
 *
 * Of one allocation, where the library knows it, either
 *     {"pages": {"0": 12, "1": 4}}    pages of the system's size by domain, or
 *     {"domain": 0}                   the one domain that all of it is in.
 */
char *retryix_svm_get_topology_metrics(void *pointer);

/* Move what is in one domain of an allocation to another; `size` is all of it and the pointer stays
 * the same. Nobody reads or writes it meanwhile. 0, or a negative errno; then the data is whole,
 * and where it was.
 */
int retryix_svm_migrate_between_domains(void *pointer, size_t size, int from, int to);

/* Optional: give back a text of this library. */
void retryix_free_string(char *text);

#ifdef __cplusplus
}
#endif

#endif
