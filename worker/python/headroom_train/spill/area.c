/* A PyTorch allocator that hands out one area of memory, front to back, and takes nothing back; and a limit for PyTorch's
 * own allocations of a GPU's memory. Everything else is done in Python (pool.py): it makes the area and tells this library
 * where it is. So there is nothing to link against.
 *
 *     make spill
 *
 * builds the copies for this machine's architecture. PyTorch calls these functions under its allocator's lock. */

#define _GNU_SOURCE
#include <link.h>
#include <sys/mman.h>

static char *next;
static unsigned long left;

void headroom_area(char *area, unsigned long bytes) {
    next = area;
    left = bytes;
}

void *headroom_alloc(long bytes, int device, void *stream) {
    char *found = next;
    (void)device, (void)stream;
    if (bytes < 0 || (unsigned long)bytes > left)
        return 0;
    next += bytes;
    left -= (unsigned long)bytes;
    return found;
}

void headroom_free(void *block, long bytes, int device, void *stream) {
    (void)block, (void)bytes, (void)device, (void)stream;
}

#define NO_MEMORY 2 /* cudaErrorMemoryAllocation */

typedef int Allocate(void **, unsigned long);
typedef int Information(unsigned long *, unsigned long *);

static Allocate *allocate; /* cudaMalloc */
static Information *information;
static unsigned long reserve;
static unsigned long every;  /* bytes of requests that have failed */
static unsigned long twice;  /* those that have failed twice in a row */
static unsigned long asked;  /* those of the newest request, if it has failed for the first time */
static int directly; /* whether PyTorch takes memory from the area without having asked a second time */

static int limited(void **block, unsigned long bytes) {
    unsigned long free, total;
    int failed = NO_MEMORY;
    if (!reserve || information(&free, &total) || free >= bytes + reserve)
        failed = allocate(block, bytes);
    if (asked && bytes != asked)
        directly = 1;
    if (failed == NO_MEMORY)
        every += bytes;
    if (failed == NO_MEMORY && bytes == asked)
        twice += bytes;
    asked = failed == NO_MEMORY && bytes != asked ? bytes : 0;
    return failed;
}

/* Bytes for which this process has asked the GPU in vain since headroom_reserve: what was then taken from the area, and
 * what has failed. Some releases of PyTorch empty their cache and ask again before they take memory from the area. Others
 * take it at once, as 2.11 does: there each request counts, as soon as one has been seen that was not repeated. */
unsigned long headroom_refused(void) {
    return directly ? every : twice;
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static int within(const char *text, const char *part) {
    for (; *text; text++) {
        const char *a = text, *b = part;
        while (*b && *a == *b)
            a++, b++;
        if (!*b)
            return 1;
    }
    return 0;
}

/* Puts limited in the place through which one library calls cudaMalloc. */
static int replace(struct dl_phdr_info *object, unsigned long size, void *library) {
    const ElfW(Dyn) *entry = 0;
    const ElfW(Rela) *calls = 0;
    const ElfW(Sym) *symbols = 0;
    const char *names = 0;
    unsigned long bytes = 0;
    (void)size;
    if (!object->dlpi_name || !within(object->dlpi_name, library))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_JMPREL: calls = (const void *)entry->d_un.d_ptr; break;
        case DT_PLTRELSZ: bytes = entry->d_un.d_val; break;
        case DT_SYMTAB: symbols = (const void *)entry->d_un.d_ptr; break;
        case DT_STRTAB: names = (const void *)entry->d_un.d_ptr; break;
        }
    for (unsigned long i = 0; calls && symbols && names && i < bytes / sizeof *calls; i++) {
        void **place = (void **)(object->dlpi_addr + calls[i].r_offset);
        unsigned long page = (unsigned long)place & ~4095ul;
        if (!same(names + symbols[calls[i].r_info >> 32].st_name, "cudaMalloc"))
            continue;
        if (mprotect((void *)page, 4096, PROT_READ | PROT_WRITE))
            return 0;
        if (*place != (void *)limited) {
            allocate = (Allocate *)*place;
            *place = (void *)limited;
        }
        return 1;
    }
    return 0;
}

/* From now on, cudaMalloc fails if it is called by a library with this name and would leave less than so many bytes of the
 * GPU free. Returns whether that is so: PyTorch must have called it before. */
int headroom_reserve(Information *function, const char *library, unsigned long bytes) {
    information = function;
    reserve = bytes;
    return dl_iterate_phdr(replace, (void *)library);
}
