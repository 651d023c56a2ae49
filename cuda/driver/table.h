#ifndef HEADROOM_DRIVER_TABLE_H
#define HEADROOM_DRIVER_TABLE_H

// Opens the driver library at path, initialises it and fills in the table.
// Returns 0 on success, the CUresult if the driver fails to initialise, or -1,
// with *why set to the reason, if the library cannot be used.
int headroom_driver_load(const char *path, const char **why);

#endif
