/* A PyTorch allocator that hands out one area of memory, front to back, and takes nothing back. Everything else is done
 * in Python (pool.py): it makes the area and tells this library where it is. So there is nothing to link against.
 *
 *     make spill
 *
 * builds the copies for this machine's architecture. PyTorch calls these functions under its allocator's lock. */

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
