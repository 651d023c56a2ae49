//go:build cuda

#include "table.h"

#include <dlfcn.h>
#include <jumps.h>
#include <stddef.h>

// Answers of an empty table, values of nvmlReturn_t.
static int answer_library_not_found(void) { return 12; }
static int answer_function_not_found(void) { return 13; }

// The one function that does not answer with an nvmlReturn_t.
static const char *answer_text(void) { return "an error that this NVML has no text for"; }

#define SYMBOL(name) HEADROOM_SLOT(name, answer_function_not_found)
#include "symbols.h"
#undef SYMBOL

static const struct {
  const char *name;
  int (**slot)(void);
} table[] = {
#define SYMBOL(name) {#name, &slot_##name},
#include "symbols.h"
#undef SYMBOL
};

__attribute__((constructor)) static void start(void) {
  slot_nvmlInit = slot_nvmlInit_v2 = slot_nvmlInitWithFlags = answer_library_not_found;
  slot_nvmlErrorString = (int (*)(void))answer_text;
}

int headroom_nvml_load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return -1;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    void *f = dlsym(library, table[i].name);
    if (f != NULL) *table[i].slot = (int (*)(void))f;
  }
  return 0;
}
