//go:build cuda

#include "table.h"

#include <dlfcn.h>
#include <jumps.h>
#include <stddef.h>

// The results, as values of CUresult, that functions return before the table is
// filled in, and that functions missing from the driver return afterwards.
static int answer_success(void) { return 0; }
static int answer_no_device(void) { return 100; }
static int answer_not_supported(void) { return 801; }

#define SYMBOL(name) HEADROOM_SLOT(name, answer_no_device)
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

// Makes cuInit succeed before the driver is loaded, because cu's initialiser
// calls it: the program must start without a driver.
__attribute__((constructor)) static void start(void) { slot_cuInit = answer_success; }

int headroom_driver_load(const char *path, const char **why) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    *why = dlerror();
    return -1;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
  if (init == NULL) {
    *why = "it has no cuInit";
    return -1;
  }
  int result = init(0);
  if (result != 0) return result;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    void *f = dlsym(library, table[i].name);
    *table[i].slot = f != NULL ? (int (*)(void))f : answer_not_supported;
  }
  return 0;
}
