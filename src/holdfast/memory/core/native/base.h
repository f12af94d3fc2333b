/* What every part needs: system headers, constants, and the lock over the lists of all cores and
 * logs.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#ifdef __APPLE__
#include <malloc/malloc.h>
#define block_room malloc_size
#else
#include <malloc.h>
#define block_room malloc_usable_size
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROUNDING 512ULL

#define PAGE page_size /* of the system, set when the module is loaded */
typedef uint64_t u64;
static u64 page_size = 4096;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
