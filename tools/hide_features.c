/* Preloaded by try_instruction_sets.py: PoCL compiles for a processor that lacks some features.
 *
 * PoCL 3.1 has no setting for it. It asks LLVM 15 which features there are; those whose names begin
 * with one of $HIDDEN_FEATURES (such as "avx512,fma") are said to be missing.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NAME "_ZN4llvm3sys18getHostCPUFeaturesERNS_9StringMapIbNS_15MallocAllocatorEEE"

/* llvm::StringMap<bool>; a key follows its entry. */
struct entry { size_t length; bool value; };
struct map { struct entry **table; unsigned buckets, items, tombstones, item_size; };

bool features(struct map *found) __asm__(NAME);

bool features(struct map *found) {
  void *llvm = dlopen("libLLVM-15.so.1", RTLD_LAZY);
  bool answer = ((bool (*)(struct map *))dlsym(llvm, NAME))(found);
  char *hidden = strdup(getenv("HIDDEN_FEATURES"));
  for (char *name = strtok(hidden, ","); name; name = strtok(NULL, ","))
    for (unsigned i = 0; i < found->buckets; i++) {
      struct entry *one = found->table[i];
      if (!one || (uintptr_t)one >> 48) continue; /* empty, or a tombstone */
      if (!strncmp((char *)(one + 1), name, strlen(name))) one->value = false;
    }
  free(hidden);
  return answer;
}
