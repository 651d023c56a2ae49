#ifndef HEADROOM_DRIVER_TABLE_H
#define HEADROOM_DRIVER_TABLE_H

// Opens the driver library at path, initialises it and fills the table in.
// Returns 0; or a CUresult; or -1 with the reason in why.
int headroom_driver_load(const char *path, const char **why);

#endif
